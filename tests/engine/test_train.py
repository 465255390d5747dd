"""Training many at once: every run is what it is alone, however it is batched, interrupted, padded or placed."""

import dataclasses
import functools
import itertools
import json
import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from emergo._errors import InputError
from emergo._random import fold_in, raw
from emergo.engine import Config, Optimizer, Run, Shape, next_evaluation, train
from emergo.engine import _cost as costs
from emergo.engine import _group as groups
from emergo.engine._cost import Program, compile_chunk, planned_width, run_bytes
from emergo.engine._program import chunk
from emergo.engine._program import step as one_step
from emergo.engine._shape import lower, products, start
from emergo.measure import emergence
from emergo.models import Transformer
from emergo.tasks import SingleLocation

BASE = Config(
    SingleLocation(6, 4, position="random", indicator=True),
    Transformer(layers=2, heads=2, width=8, mlp_factor=2),
    Optimizer(learning_rate=0.02),
    batch=8,
    tests=16,
    precision="fp32",
    threshold=0.15,
    steps=1000,
)


def run_of(seed, dim=2, burst=1, repeat=0.0, optimizer=BASE.optimizer, **changes):
    task = dataclasses.replace(BASE.task, dim=dim, burst=burst, repeat=repeat)
    return Run(dataclasses.replace(BASE, task=task, optimizer=optimizer, **changes), seed)


# Five runs for two places, of two tasks, two learning rates and two starts; all that may differ within a program does.
FAST, XAVIER = Optimizer(learning_rate=0.04), dataclasses.replace(BASE.model, initial="xavier")
RUNS = [
    run_of(0, 4, 3, 0.3),
    run_of(1),
    run_of(2, 4, 3, 0.3, FAST),
    run_of(3, optimizer=FAST, model=XAVIER),
    run_of(4, 4, 3, 0.3),
]


def altered(run, **changes):
    return Run(dataclasses.replace(run.config, **changes), run.seed)


def crossing(history):
    steps, loss = history.curves["step"], history.curves["loss"]
    return int(steps[np.argmax(loss <= history.run.config.threshold)]) if history.state == "reached" else -1


def identical(one, two):
    """The same program on the same numbers."""
    assert (one.run, one.state, one.failed_step) == (two.run, two.state, two.failed_step)
    assert set(one.curves) == set(two.curves)
    for name, values in one.curves.items():
        assert np.array_equal(values, two.curves[name], equal_nan=values.dtype.kind == "f"), name


def alike(one, two, tolerance=1e-3):
    """Another order of summation: rounding errors of 1e-7 grow with training, to less than 1e-3 in a hundred steps."""
    assert (one.run, one.state) == (two.run, two.state)
    assert set(one.curves) == set(two.curves)
    for name, values in one.curves.items():
        np.testing.assert_allclose(values, two.curves[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.fixture(scope="module")
def together():
    """All runs in two places, which are filled again as runs end, and what was told of the way."""
    told, ended = [], []
    return train(RUNS, width=2, progress=told.append, on_end=lambda h: ended.append(h.run)), told, ended


@pytest.mark.slow
def test_a_run_is_the_same_alone_and_among_others(together):
    """Of another dim, burst, seed and learning rate. The loss falls past the threshold by much more than rounding errors."""
    for beside in together[0][:2]:
        (alone,) = train([beside.run])
        assert beside.state == "reached"
        np.testing.assert_array_equal(beside.curves["step"], alone.curves["step"])
        assert crossing(beside) == crossing(alone) > 0
        # The first evaluations, before rounding errors have grown.
        np.testing.assert_allclose(beside.curves["loss"][:3], alone.curves["loss"][:3], rtol=1e-3)
        alike(beside, alone, 1e-2)
        # A single test loss is told only of runs whose burst is not 1, whatever the others have.
        assert ("loss_single" in beside.curves) == (beside.run.config.task.burst > 1)


@pytest.mark.slow
def test_seeds_trained_together_are_distributed_as_seeds_trained_alone():
    """Other seeds on either side, so that only the law of the emergence times can agree."""

    def time(history):
        assert history.state == "reached"
        return emergence(history.curves["step"], history.curves["loss"], history.run.config.threshold).time

    slow = Optimizer(learning_rate=0.005)
    together = [time(history) for history in train([run_of(seed, optimizer=slow) for seed in range(100, 116)], width=8)]
    alone = [time(train([run_of(seed, optimizer=slow)])[0]) for seed in range(200, 216)]
    assert len(set(together)) == len(together)  # neighbours do not see the same draws
    # The seeds are fixed, so the p-values are; a shift by one standard deviation would give 0.002.
    assert scipy.stats.mannwhitneyu(together, alone).pvalue > 0.05
    assert scipy.stats.ansari(together, alone).pvalue > 0.05


def test_order_and_ends(together):
    """Histories come in the order of the runs, ends as they happen, and the same run asked for twice is trained once."""
    histories, _, ended = together
    assert [h.run for h in histories] == RUNS
    assert {r.identity for r in ended} == {r.identity for r in RUNS}
    assert len(ended) == len(RUNS)
    again = train([*RUNS, RUNS[0]], width=2)
    assert [h.run for h in again] == [*RUNS, RUNS[0]]
    for one, two in zip(again, histories, strict=False):
        identical(one, two)


def test_what_is_seen(together):
    history = together[0][0]
    count = len(history.curves["step"])
    assert history.curves["step"][0] == 0
    for name in ("attention", "entropy"):
        assert history.curves[name].shape == (count, 2, 2)
    assert (history.curves["attention"] >= 0).all()
    assert (history.curves["attention"] <= 1 + 1e-5).all()
    assert (history.curves["entropy"] <= np.log(6) + 1e-5).all()
    assert (np.abs(history.curves["alignment"]) <= 1 + 1e-5).all()
    assert np.isnan(history.curves["train_loss"][0])
    assert np.isfinite(history.curves["train_loss"][1:]).all()


def test_progress(together):
    histories, told, _ = together
    assert all(p.total == len(RUNS) for p in told)
    assert [p.done for p in told] == sorted(p.done for p in told)
    last = told[-1]
    assert (last.done, last.failed, len(last.running), last.seconds_left) == (len(RUNS), 0, 0, 0)
    assert last.steps == sum(int(h.curves["step"][-1]) for h in histories)
    assert last.rate > 0
    assert last.bytes > 0
    assert told[0].seconds_left is None
    assert all(len(p.running) <= 2 for p in told)


def test_data_are_the_same_alone_and_batched():
    """The tasks of all runs under one hull and one map, against each task on its own."""
    shape = Shape.of([r.config for r in RUNS])
    slots = [start(shape, run) for run in RUNS]
    stack = jax.tree.map(lambda *x: jnp.stack(x), *slots)

    def drawn(slot):
        return shape.hull.sample(fold_in(slot.stream, 3), 8, slot.truth, slot.traits)

    batched = jax.jit(jax.vmap(drawn))(stack)
    by_itself = jax.jit(
        lambda task, key: task.sample(fold_in(fold_in(key, 2), 3), 8, task.truth(fold_in(key, 0))), static_argnums=0
    )
    for i, run in enumerate(RUNS):
        task = run.config.task
        assert isinstance(task, SingleLocation)
        alone = by_itself(task, raw(jax.random.key(run.seed)))
        tokens, target = np.asarray(batched.tokens[i]), np.asarray(batched.target[i])
        assert not tokens[..., task.dim :].any()
        assert not target[:, task.dim :].any()
        # The last bits of a logarithm, and of a sum with zeros among its terms.
        np.testing.assert_allclose(tokens[..., : task.dim], alone.tokens, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(target[:, : task.dim], alone.target, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(batched.relevant[i], alone.relevant)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def begin(task, model, tests, key):
    """What a run has to learn, how it starts and what it is tested on, by the keys that the engine promises."""
    truth = task.truth(fold_in(key, 0))
    parameters = model.init(fold_in(key, 1), task.length, task.dim, task.dim, task.indicator)
    bursts = dict.fromkeys((task.burst, 1))  # one or two test sets
    return truth, parameters, [task.without_repetition(b).sample(fold_in(key, 3), tests, truth) for b in bursts]


def loss_of(parameters, model, data):
    """By the plain forward, which has every position and folds nothing; and what the last position attends to."""
    seen = model.forward(parameters, data.tokens, data.marks)
    return 0.5 * jnp.mean(jnp.sum((seen.outputs[:, -1] - data.target) ** 2, -1)), seen.attention[:, :, :, -1]


seen_by = jax.jit(loss_of, static_argnums=1)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def graded(task, model, batch, parameters, truth, key):
    return jax.value_and_grad(loss_of, has_aux=True)(parameters, model, task.sample(key, batch, truth))


def plain_path(run, optimizer):
    """The steps of a run as anyone would write them: how it ends, the test losses at both ends and the losses of all steps."""
    config, key = run.config, raw(jax.random.key(run.seed))
    update = jax.jit(optimizer.update)
    with jax.default_matmul_precision("highest"):
        truth, parameters, tests = begin(config.task, config.model, config.tests, key)
        losses, trained, memory = [seen_by(parameters, config.model, tests[0])[0]], [], optimizer.init(parameters)
        for step in range(config.steps):
            data_key = fold_in(fold_in(key, 2), step)
            (loss, _), gradient = graded(config.task, config.model, config.batch, parameters, truth, data_key)
            updates, memory = update(gradient, memory, parameters)
            parameters = jax.tree.map(jnp.add, parameters, updates)
            trained.append(float(loss))
        losses.append(seen_by(parameters, config.model, tests[0])[0])
    return parameters, truth, tests, losses, trained


def follows(history, losses, trained):
    """Rounding errors of another order of summation grow to less than 1e-4 of a loss in so few steps."""
    assert history.state == "exhausted"
    np.testing.assert_array_equal(history.curves["step"], [0, history.run.config.steps])
    np.testing.assert_allclose(history.curves["loss"], losses, rtol=1e-4)
    assert history.curves["train_loss"][1] == pytest.approx(np.mean(trained), rel=1e-4)


@pytest.mark.slow
def test_a_plain_loop_takes_the_same_path_with_adam():
    """With a burst and repetition; and all that is seen at the end."""
    run = altered(RUNS[0], threshold=-1.0, steps=20)
    model = run.config.model
    (history,) = train([run])
    parameters, truth, (test, single), losses, trained = plain_path(run, optax.adam(0.02))
    follows(history, losses, trained)
    assert history.curves["loss_single"][1] == pytest.approx(float(seen_by(parameters, model, single)[0]), rel=1e-3)
    seen = np.asarray(seen_by(parameters, model, test)[1])
    on_relevant = np.where(np.asarray(test.relevant)[:, None, None], seen, 0).sum(-1).mean(0)
    np.testing.assert_allclose(history.curves["attention"][1], on_relevant, rtol=1e-3)
    np.testing.assert_allclose(history.curves["entropy"][1], -(seen * np.log(seen)).sum(-1).mean(0), rtol=1e-3)
    assert isinstance(model, Transformer)
    path, target = np.asarray(model.value_path(parameters)), np.asarray(truth.weights).T
    cosine = (path * target).sum() / np.linalg.norm(path) / np.linalg.norm(target)
    assert history.curves["alignment"][1] == pytest.approx(cosine, rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_a_plain_loop_takes_the_same_path_with_adamw():
    """A weight decay large enough to matter. Single steps of the engine, so that the parameters themselves can be compared."""
    run = run_of(0, optimizer=Optimizer("adamw", 0.01, weight_decay=0.3), steps=20)
    shape = Shape.of([run.config])
    slot, step, losses = start(shape, run), jax.jit(functools.partial(one_step, shape, False)), []
    with products("fp32"):
        for _ in range(run.config.steps):
            slot, loss = step(slot)
            losses.append(float(loss))
    parameters, *_, trained = plain_path(run, optax.adamw(0.01, weight_decay=0.3))
    np.testing.assert_allclose(losses, trained, rtol=1e-4)
    for (path, ours), theirs in zip(jax.tree.leaves_with_path(slot.parameters), jax.tree.leaves(parameters), strict=True):
        # A softmax does not see the bias of the keys: its gradient is all rounding, which Adam scales up to full steps.
        if not jax.tree_util.keystr(path).endswith(".key.bias"):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_the_bf16_copy_of_parameters_is_that_of_the_step():
    """A chunk hands it from step to step; a single step casts for itself. With an old copy the losses would be others."""
    run = run_of(0, optimizer=Optimizer("sgd", 0.1), precision="bf16", steps=8)
    shape = Shape.of([run.config])
    step = jax.jit(functools.partial(one_step, shape, False))
    old = lower(shape, start(shape, run).parameters)
    with products("bf16"):
        stack = jax.tree.map(lambda x: x[None], start(shape, run))
        _, seen = jax.jit(functools.partial(chunk, shape, False))(stack, jnp.int32(8))
        fresh, stale = start(shape, run), start(shape, run)
        totals = np.zeros(2)
        for _ in range(8):
            fresh, loss = step(fresh)
            stale, late = step(stale, old)
            totals += float(loss), float(late)
    assert float(seen["train_loss"][0]) == pytest.approx(totals[0], rel=2e-3)
    assert abs(totals[1] / totals[0] - 1) > 0.02


def descent(seed, rate=0.05):
    return run_of(seed, optimizer=Optimizer("sgd", rate, momentum=0.9), steps=20, threshold=-1.0)


@pytest.fixture(scope="module")
def descents():
    return train([descent(0), descent(1), descent(2)], width=3)


@pytest.mark.slow
def test_a_plain_loop_takes_the_same_path_with_momentum(descents):
    follows(descents[0], *plain_path(descent(0), optax.sgd(0.05, momentum=0.9))[-2:])


@pytest.mark.slow
def test_a_run_that_fails_leaves_its_neighbours_alone(descents):
    """At a learning rate of 1e10 a loss is soon past fp32. The other two places hold the same runs with and without it."""
    told = []
    bad, *good = train([descent(0, 1e10), descent(1), descent(2)], width=3, progress=told.append)
    assert bad.state == "failed"
    assert bad.failed_step is not None
    assert 0 < bad.failed_step < 20
    assert all(h.failed_step is None for h in descents)
    # It ends at the first evaluation after.
    np.testing.assert_array_equal(bad.curves["step"], [0, 20])
    assert np.isfinite(bad.curves["loss"][0])
    assert not np.isfinite(bad.curves["train_loss"][1])
    for one, two in zip(good, descents[1:], strict=True):
        alike(one, two, 1e-6)
    assert told[-1].failed == 1


class Interrupt:
    """Presses Ctrl-C after so many chunks."""

    def __init__(self, after):
        self.after = after

    def __call__(self, progress):
        self.after -= 1
        if self.after == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupted_call_goes_on_where_it_was(together, tmp_path, after):
    """Bit for bit, since it is the same program on the same numbers; after some runs have ended, and before any has."""
    with pytest.raises(KeyboardInterrupt):
        train(RUNS, width=2, checkpoint=tmp_path, progress=Interrupt(after))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".npz"
    told, ended = [], []
    resumed = train(RUNS, width=2, checkpoint=tmp_path, progress=told.append, on_end=lambda h: ended.append(h.run))
    for one, two in zip(resumed, together[0], strict=True):
        identical(one, two)
    assert list(tmp_path.iterdir()) == []
    assert len(told) == len(together[1]) - after
    assert len(ended) == len(RUNS)


def test_checkpoints_are_written_on_the_way(tmp_path):
    """Without an interrupt, at least as often as asked; here after every chunk."""
    seen = []
    train(
        RUNS[:2],
        width=2,
        checkpoint=tmp_path,
        checkpoint_seconds=0.0,
        progress=lambda _: seen.append(len(list(tmp_path.iterdir()))),
    )
    assert seen[0] == 0
    assert set(seen[1:]) == {1}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "no meta"])
def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path, damage):
    with pytest.raises(KeyboardInterrupt):
        train(RUNS, width=2, checkpoint=tmp_path, progress=Interrupt(1))
    (file,) = tmp_path.iterdir()
    if damage == "no meta":
        np.savez(file, other=np.zeros(3))
    else:
        file.write_bytes({"cut": file.read_bytes()[:-200], "text": b"not a checkpoint", "empty": b""}[damage])
    with pytest.raises(InputError, match=file.name):
        train(RUNS, width=2, checkpoint=tmp_path)


def test_a_checkpoint_of_other_runs_is_not_used(together, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(RUNS[:2], width=2, checkpoint=tmp_path, progress=Interrupt(1))
    told = []
    histories = train(RUNS, width=2, checkpoint=tmp_path, progress=told.append)
    for one, two in zip(histories, together[0], strict=True):
        identical(one, two)
    assert len(told) == len(together[1])


def test_runs_that_had_ended_need_not_be_asked_for_again(together, tmp_path):
    """A store keeps them: the next call asks for the rest."""
    ended = []
    with pytest.raises(KeyboardInterrupt):
        train(RUNS, width=2, checkpoint=tmp_path, progress=Interrupt(3), on_end=lambda h: ended.append(h.run))
    rest = [h for h in together[0] if h.run not in ended]
    assert 0 < len(rest) < len(RUNS)
    told = []
    for one, two in zip(train([h.run for h in rest], width=2, checkpoint=tmp_path, progress=told.append), rest, strict=True):
        identical(one, two)
    assert len(told) == len(together[1]) - 3


@given(st.integers(0, 50_000))
def test_evaluations_are_close_enough(step):
    """25 steps apart or 2% of the step: the resolution of every plateau length."""
    after = next_evaluation(step)
    assert 25 <= after - step <= max(25, 0.02 * step)
    assert (after - step) % 25 == 0


def test_the_grid_of_evaluations():
    """The same for all runs: multiples of 25 from 0 on, about 200 of them in 50,000 steps."""
    grid = [0]
    while grid[-1] < 50_000:
        grid.append(next_evaluation(grid[-1]))
    assert grid[:4] == [0, 25, 50, 75]
    assert all(step % 25 == 0 for step in grid)
    assert 150 < len(grid) < 300


def test_runs_of_other_ages_are_evaluated_on_their_own_grid(monkeypatch):
    """Runs that begin late are due at other times than those beside them, as when one's spacing is 50 and another's 75."""
    monkeypatch.setattr(groups, "next_evaluation", lambda step, cadence: step + (4 if step < 8 else 6))
    runs = [altered(r, steps=s, threshold=-1.0) for r, s in zip(RUNS, (10, 33, 33, 20, 33), strict=True)]
    for history in train(runs, width=2):
        last = history.run.config.steps
        np.testing.assert_array_equal(history.curves["step"], [s for s in (0, 4, 8, 14, 20, 26, 32) if s < last] + [last])


@pytest.mark.slow
def test_narrowing_changes_nothing(monkeypatch):
    """Two runs of which one ends first; the other goes on in a narrower stack, or where it is."""
    runs = [altered(r, steps=s, threshold=-1.0) for r, s in zip(RUNS, (25, 75), strict=False)]
    widths = []

    def watched(pool, count, launch=groups.Pool.launch):
        widths.append(len(pool.places))
        launch(pool, count)

    monkeypatch.setattr(groups.Pool, "launch", watched)
    plain = train(runs, width=2)
    assert set(widths) == {2}
    monkeypatch.setattr(groups, "worth_narrowing", lambda *_: True)
    widths.clear()
    for one, two in zip(train(runs, width=2), plain, strict=True):
        alike(one, two)
    assert widths == [2, 2, 1, 1]


def test_a_program_is_halved_until_it_fits(monkeypatch):
    """By the compiler's count, here one of 100 bytes a run. One run is compiled even where it does not fit."""
    shape, device, counted = Shape.of([BASE]), jax.devices()[0], []

    def compiled(shape, width, *_):
        counted.append(width)
        return Program(None, width, 100 * width)

    monkeypatch.setattr(costs, "_compile", compiled)
    assert compile_chunk(shape, 8, device, 250) == Program(None, 2, 200)
    assert compile_chunk(shape, 2, device, 1) == Program(None, 1, 100)
    assert counted == [8, 4, 2, 2, 1]


def test_the_planned_width():
    """At least one run, more where there is more memory, and never more than fit."""
    shape, device = Shape.of([BASE]), jax.devices()[0]
    budgets = [0.0, 1.0, run_bytes(shape), 5.5 * run_bytes(shape), 1e12]
    widths = [planned_width(shape, device.platform, b) for b in budgets]
    assert widths[:4] == [1, 1, 1, 5]
    assert widths == sorted(widths)
    large = Shape.of([Config(SingleLocation(512, 64), precision="fp32")])
    assert run_bytes(large) > run_bytes(shape)
    assert 1 <= planned_width(large, device.platform, 1e12) < planned_width(shape, device.platform, 1e12)


TWO_DEVICES = """
import json
import jax
from emergo.engine import Config, Optimizer, Run, train
from emergo.engine import _group as groups
from emergo.models import Transformer
from emergo.tasks import SingleLocation

held = {}

def watched(pool, queue, fill=groups.Pool.fill):
    before = {p.run.seed for p in pool.live}
    taken = fill(pool, queue)
    held.setdefault(pool.device.id, []).extend({p.run.seed for p in pool.live} - before)
    return taken

groups.Pool.fill = watched
model = Transformer(layers=1, heads=1, width=4, mlp=False)
config = Config(SingleLocation(3, 2), model, Optimizer(learning_rate=0.04), 4, "fp32", threshold=0.2, tests=8, steps=500)
found = []
for devices in (jax.devices(), jax.devices()[1:]):
    held.clear()
    ended = train([Run(config, seed) for seed in range(4)], width=1, devices=devices)
    curves = [[h.state, h.curves["step"].tolist(), h.curves["loss"].tolist()] for h in ended]
    found.append({"devices": len(devices), "held": {k: sorted(v) for k, v in held.items()}, "curves": curves})
print(json.dumps(found))
"""


@pytest.mark.slow
def test_two_devices_share_the_runs():
    """Each takes runs from one queue, and a run is the same on either; the second run of the engine is on one of them alone."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", TWO_DEVICES], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    both, one = json.loads(done.stdout.splitlines()[-1])
    assert (both["devices"], one["devices"]) == (2, 1)
    assert sorted(both["held"]) == ["0", "1"]
    assert all(both["held"].values())
    assert sorted(itertools.chain(*both["held"].values())) == [0, 1, 2, 3]
    assert one["held"] == {"1": [0, 1, 2, 3]}
    for (state, steps, losses), (state_one, steps_one, losses_one) in zip(both["curves"], one["curves"], strict=True):
        assert state == state_one == "reached"
        assert steps == steps_one
        np.testing.assert_allclose(losses, losses_one, rtol=1e-3)


def test_a_run_goes_on_beyond_its_plateau(together):
    """`beyond` times as long again, to the next evaluation; what came before is the same."""
    longer = [altered(r, beyond=1.5) for r in RUNS[:2]]
    for long, short in zip(train(longer, width=2), together[0], strict=False):
        assert long.state == "reached"
        crossed, steps = crossing(short), long.curves["step"]
        assert crossed == short.curves["step"][-1] == crossing(long)
        assert steps[-2] < 2.5 * crossed <= steps[-1]
        np.testing.assert_allclose(long.curves["loss"][: len(short.curves["loss"])], short.curves["loss"], rtol=1e-3)


def test_the_last_step():
    """A cap off the grid of evaluations is kept exactly; a run past its threshold by then has reached it."""
    capped = [altered(r, steps=30, threshold=t) for r in RUNS[:2] for t in (-1.0, 100.0)]
    for history in train(capped, width=2):
        never = history.run.config.threshold < 0
        assert history.state == ("exhausted" if never else "reached")
        np.testing.assert_array_equal(history.curves["step"], [0, 25, 30] if never else [0])


def test_beyond_ends_at_the_cap():
    run = altered(RUNS[0], steps=60, threshold=100.0, beyond=1e9)
    other = altered(RUNS[1], steps=60, threshold=-1.0)
    at_once, exhausted = train([run, other], width=2)
    assert (at_once.state, exhausted.state) == ("reached", "exhausted")
    assert exhausted.curves["step"][-1] == 60


def test_nothing_to_train():
    assert train([]) == []


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [({}, {"width": 0}, "width must be at least 1, got 0"), ({"precision": "tf32"}, {}, "on a CPU use fp32")],
)
def test_wrong_input_is_named(changes, options, message):
    with pytest.raises(InputError, match=message):
        train([run_of(0, **changes)], **options)
