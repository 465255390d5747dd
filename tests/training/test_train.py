"""Training many runs at once: every run has the numbers that it has alone."""

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from emergo.core.errors import InputError
from emergo.core.random import fold_in, raw
from emergo.training._program import user_key

from .helpers import alike, check_going_on, identical
from .own import CHAIN, Echo, follows, make_flat, plain_run
from .own import TRANSFORMER as BASE
from .own import run_of as own_run
from .untyped import (
    Config,
    EquinoxModel,
    Optimizer,
    Recall,
    Run,
    SingleLocation,
    Transformer,
    load_parameters,
    save_parameters,
    train,
)

pytestmark = pytest.mark.usefixtures("fast_paths")


def run_of(seed, dim=2, burst=1, repeat=0.0, **changes):
    return Run(BASE.replace(task__dim=dim, task__burst=burst, task__repeat=repeat, **changes), seed)


# Five runs of one program, with two tasks, two learning rates and two initialisations.
RUNS = [
    run_of(0, 4, 3, 0.3),
    run_of(1),
    run_of(2, 4, 3, 0.3, optimizer__learning_rate=0.04),
    run_of(3, optimizer__learning_rate=0.04, model__initial="xavier"),
    run_of(4, 4, 3, 0.3),
]


def altered(run, **changes):
    return Run(run.config.replace(**changes), run.seed)


def crossing(result):
    steps = result.curves["step"]
    loss = result.curves["loss"]
    return (
        int(steps[np.argmax(loss <= result.run.config.threshold)])
        if result.state == "reached"
        else -1
    )


@pytest.fixture(scope="module")
def together():
    """All runs in two slots, with the progress and the order in which they end."""
    progress = []
    ended = []
    return (
        train(RUNS, n_parallel=2, progress=progress.append, on_end=lambda r: ended.append(r.run)),
        progress,
        ended,
    )


@pytest.mark.slow
def test_a_run_is_the_same_alone_and_in_a_stack(together):
    """Its neighbours have another dim, burst and learning rate."""
    beside = together[0][1]
    (alone,) = train([beside.run])
    assert beside.state == "reached"
    np.testing.assert_array_equal(beside.curves["step"], alone.curves["step"])
    assert crossing(beside) == crossing(alone) > 0
    # The first evaluations, before rounding errors have grown.
    np.testing.assert_allclose(beside.curves["loss"][:3], alone.curves["loss"][:3], rtol=1e-3)
    alike(beside, alone, 1e-2)
    # The loss at a burst of 1 is a curve of runs whose burst is not 1, whatever the others have.
    for result in together[0]:
        assert ("loss_single" in result.curves) == (result.run.config.task.burst > 1)


def test_order_and_ends(together):
    """Results have the order of the runs, `on_end` the order of their ends. Equal runs are trained
    once."""
    results, _, ended = together
    assert [r.run for r in results] == RUNS
    assert {r.identity for r in ended} == {r.identity for r in RUNS}
    assert len(ended) == len(RUNS)
    again = train([*RUNS, RUNS[0]], n_parallel=2)
    assert [r.run for r in again] == [*RUNS, RUNS[0]]
    for one, two in zip(again, results, strict=False):
        identical(one, two)


def test_the_curves_of_a_run(together):
    result = together[0][0]
    count = len(result.curves["step"])
    assert result.curves["step"][0] == 0
    for name in ("attention", "entropy"):
        assert result.curves[name].shape == (count, 1, 2)
    assert (result.curves["attention"] >= 0).all()
    assert (result.curves["attention"] <= 1 + 1e-5).all()
    assert (result.curves["entropy"] <= np.log(6) + 1e-5).all()
    assert (np.abs(result.curves["alignment"]) <= 1 + 1e-5).all()
    assert np.isnan(result.curves["train_loss"][0])
    assert np.isfinite(result.curves["train_loss"][1:]).all()
    assert result.steps == result.curves["step"][-1]
    assert result.plateau.low < result.plateau.time <= result.plateau.high == crossing(result)
    assert set(result.provenance) == {"version", "jax", "device"}


def test_progress(together):
    results, progress, _ = together
    assert all(p.total == len(RUNS) for p in progress)
    assert [p.done for p in progress] == sorted(p.done for p in progress)
    last = progress[-1]
    assert (last.done, last.failed, len(last.running), last.seconds_left) == (len(RUNS), 0, 0, 0)
    assert last.steps == sum(result.steps for result in results)
    assert last.rate > 0
    assert last.bytes > 0
    assert progress[0].seconds_left is None
    assert all(len(p.running) <= 2 for p in progress)


@pytest.mark.slow
def test_training_equals_a_plain_loop():
    """Includes a burst and repetition. The loss at a burst of 1 is a further curve."""
    run = altered(RUNS[0], threshold=None, steps=20)
    (result,) = train([run])
    assert result.state == "trained"
    params, tested, trained = plain_run(run, optax.adam(0.02))
    follows(result, tested, trained)
    key = raw(jax.random.key(run.seed))
    truth = run.config.task.truth(user_key(fold_in(key, 0)))
    single = SingleLocation(6, 4, 1, 0.0, "random", True)
    test = single.batch(user_key(fold_in(key, 3)), 16, truth)
    loss = single.loss(run.config.model.apply(params, test.inputs), test).mean()
    assert result.curves["loss_single"][1] == pytest.approx(float(loss), rel=1e-3)


def descent(seed, rate=0.05):
    return own_run(
        seed, optimizer=Optimizer("sgd", rate, momentum=0.9), task=Patient(4, 3), steps=20
    )


class Patient(Echo):
    """A task with few evaluations."""

    eval_every = 25


def test_a_failed_run_does_not_change_its_neighbours():
    """A learning rate of 1e10 soon exceeds fp32."""
    without = train([descent(0), descent(1), descent(2)], n_parallel=3)
    progress = []
    bad, *good = train(
        [descent(0, 1e10), descent(1), descent(2)], n_parallel=3, progress=progress.append
    )
    assert bad.state == bad.plateau.state == "failed"
    assert bad.failed_step is not None
    assert 0 < bad.failed_step < 20
    assert bad.reason == f"the loss was not finite at step {bad.failed_step}"
    assert all(result.failed_step is None for result in without)
    # It ends at the first evaluation after.
    np.testing.assert_array_equal(bad.curves["step"], [0, 20])
    assert np.isfinite(bad.curves["loss"][0])
    assert not np.isfinite(bad.curves["train_loss"][1])
    for one, two in zip(good, without[1:], strict=True):
        alike(one, two, 1e-6)
    assert progress[-1].failed == 1


def test_overtraining():
    """A run continues to the first evaluation after 1 + `overtrain` times its plateau."""
    short = [own_run(seed, threshold=0.3, steps=400) for seed in range(2)]
    longer = [altered(run, overtrain=1.5) for run in short]
    for long, once in zip(train(longer, n_parallel=2), train(short, n_parallel=2), strict=True):
        assert long.state == once.state == "reached"
        crossed = once.curves["step"][-1]
        steps = long.curves["step"]
        assert long.plateau == once.plateau
        assert steps[-2] < 2.5 * crossed <= steps[-1]
        np.testing.assert_allclose(
            long.curves["loss"][: len(once.curves["loss"])], once.curves["loss"], rtol=1e-3
        )


def test_the_last_step_and_the_states():
    """The last step is exact, even between evaluations. A run that has crossed its threshold by
    then has reached it."""
    capped = [own_run(seed, steps=8, threshold=t) for seed in range(2) for t in (None, -1.0, 1e9)]
    for result in train(capped, n_parallel=2):
        threshold = result.run.config.threshold
        at_once = threshold == 1e9
        assert (
            result.state
            == result.plateau.state
            == ("trained" if threshold is None else "reached" if at_once else "censored")
        )
        np.testing.assert_array_equal(result.curves["step"], [0] if at_once else [0, 5, 8])
        assert result.plateau.time == pytest.approx(
            {None: np.nan, -1.0: 8, 1e9: 0}[threshold], nan_ok=True
        )


def test_each_copy_of_a_run_has_the_curves_of_its_probes():
    def one(params, output, batch, truth, step):
        return {"one": jnp.float32(1)}

    def two(params, output, batch, truth, step):
        return {"two": jnp.float32(2)}

    first, second, again = train(
        [own_run(0, probes=(one,)), own_run(0, probes=(two,)), own_run(0, probes=(one,))]
    )
    assert [{"one", "two"} & set(result.curves) for result in (first, second, again)] == [
        {"one"},
        {"two"},
        {"one"},
    ]
    np.testing.assert_array_equal(first.curves["loss"], second.curves["loss"])


def test_ended_groups_free_their_memory(monkeypatch):
    """Groups are trained one after another."""
    monkeypatch.setenv("EMERGO_FAST", "off")  # nothing to compare, which takes half of the time
    widths = (64, 66, 68)
    runs = [run_of(0, model__width=width, steps=25, threshold=None) for width in widths]
    held = {}

    def look(result):
        held[result.run.config.model.width] = sum(array.nbytes for array in jax.live_arrays())

    before = sum(array.nbytes for array in jax.live_arrays())
    train(runs, on_end=look)
    taken = [held[width] - before for width in widths]
    assert taken[0] > 1e5
    assert max(taken) < 1.5 * taken[0]


def test_enable_x64_changes_nothing():
    plain = train([own_run(0)])[0]
    with jax.enable_x64(True):
        identical(train([own_run(0)])[0], plain)


def test_an_interrupt_in_the_last_chunk_is_not_lost():
    with pytest.raises(KeyboardInterrupt):
        train([own_run(0)], on_end=lambda result: os.kill(os.getpid(), signal.SIGINT))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_interrupt_stays_ignored():
    """For a job in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        [result] = train([own_run(0)], progress=lambda now: os.kill(os.getpid(), signal.SIGINT))
        assert result.state == "trained"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_named():
    assert train([]) == []
    for runs in (run_of(0), ["run"], [run_of(0).config]):
        with pytest.raises(InputError, match="train takes a list of runs"):
            train(runs)


# Tasks and models of the user.


def test_an_equinox_module():
    run = own_run(task=SingleLocation(4, 3), model=EquinoxModel(make_flat), steps=50)
    (result,) = train([run])
    follows(result, *plain_run(run, optax.adam(0.05))[1:], tolerance=1e-3)
    assert result.curves["loss"][-1] < 0.3 * result.curves["loss"][0]


# The Markov chain.

CHAINS = [
    Run(CHAIN, 0),
    Run(CHAIN.replace(model__scale=0.0), 1),
    Run(CHAIN.replace(model__start="xavier"), 2),
    Run(CHAIN.replace(task__groups__importance=1.3), 3),
]


@pytest.fixture(scope="module")
def chains():
    return train(CHAINS)


def test_the_curves_of_a_chain(chains):
    for result in chains:
        curves = result.curves
        assert result.state == "trained"
        assert curves["step"].tolist() == [0, 5, 10, 15, 20]
        np.testing.assert_allclose(curves["kl_teacher"], curves["kl_references"][:, -1], rtol=1e-4)
        # The loss is a sample of the teacher's entropy + KL: 64 x 4 tokens of a few nats each.
        difference = curves["loss"] - curves["teacher_loss"]
        np.testing.assert_allclose(difference, curves["kl_teacher"], atol=0.35)
    assert chains[0].curves["kl_teacher"][-1] < 0.8 * chains[0].curves["kl_teacher"][0]


def test_equal_heads_stay_equal_bit_for_bit(chains):
    lags = chains[1].curves["attention_by_lag"][:, 0]
    np.testing.assert_array_equal(lags[:, 0], lags[:, 1])
    assert np.ptp(lags[-1, 0]) > 1e-3  # and they have moved
    other = chains[0].curves["attention_by_lag"][:, 0]
    assert (other[-1, 0] != other[-1, 1]).any()


@pytest.mark.slow
def test_fp64_equals_fp32_up_to_rounding(chains, tmp_path):
    runs = [altered(run, precision="fp64") for run in CHAINS[:2]]
    kept = []
    results = train(runs, keep=[], snapshot=kept.append)
    check_going_on(results, tmp_path)
    save_parameters(tmp_path / "file", kept[0])
    again = load_parameters(tmp_path / "file", runs[0])
    types = {leaf.dtype for leaf in jax.tree.leaves((kept[0].params, again.params))}
    assert types == {np.dtype(np.float64)}
    assert jnp.ones(()).dtype == np.float32  # outside of training
    wide = results[0].curves
    narrow = chains[0].curves
    for name in ("loss", "kl_teacher", "kl_references", "attention_by_lag"):
        assert wide[name].dtype == np.float64
        np.testing.assert_allclose(wide[name], narrow[name], rtol=1e-3, atol=1e-5, err_msg=name)
    assert (wide["loss"] != narrow["loss"]).any()
    heads = results[1].curves["attention_by_lag"][:, 0]
    np.testing.assert_array_equal(heads[:, 0], heads[:, 1])


# Associative recall, with padded vocabularies.


@pytest.fixture(scope="module")
def recalls():
    config = Config(
        Recall(2, 6, placement="chance"),
        Transformer(layers=2, heads=2, width=8, mask="causal", mlp=False),
        Optimizer(learning_rate=5e-3),
        batch=16,
        n_test=64,
        precision="fp32",
        threshold=0.9,
        steps=50,
    )
    changes = [{"task__burst": 1.5}, {"task__vocabulary": 4}, {"task__repeat": 0.5}]
    return train([Run(config.replace(**change), seed) for seed, change in enumerate(changes)])


@pytest.mark.slow
def test_a_padded_recall_is_the_same_alone_and_in_a_stack(recalls, tmp_path):
    beside = recalls[1]
    (alone,) = train([beside.run])
    assert set(beside.curves) == set(alone.curves)
    np.testing.assert_array_equal(beside.curves["step"], alone.curves["step"])
    np.testing.assert_allclose(beside.curves["loss"], alone.curves["loss"], rtol=1e-2)
    np.testing.assert_allclose(beside.curves["accuracy"], alone.curves["accuracy"], atol=0.05)
    check_going_on(recalls, tmp_path)
