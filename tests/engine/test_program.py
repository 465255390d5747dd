"""One step of a run: plain Optax on the task's data, by plain forwards; alone, batched and padded."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from emergo._contract import Tap
from emergo._random import fold_in, raw
from emergo.engine._program import (
    TAPPED,
    Program,
    chunk,
    draw,
    evaluate,
    forward,
    largest_sizes,
    lower,
    products,
    program_key,
    program_name,
    start,
    step,
    user_key,
)

from .own import BASE as OWN
from .own import CHAIN as LONG_CHAIN
from .own import TRANSFORMER, Heads, clock, largest_score, plain_run, run_of
from .untyped import ChainTransformer, MarkovChain, Optimizer, Run, SingleLocation, groups_of, train

BASE = TRANSFORMER.replace(task__dim=2, steps=12)
CHAIN = LONG_CHAIN.replace(steps=10)
WIDE = BASE.replace(task__dim=4, task__burst=3, task__repeat=0.3)
FULL = CHAIN.replace(model=ChainTransformer(heads=2, width=8, hidden=8), n_train=None, optimizer=Optimizer("sgd", 0.1))


def alone(config):
    return Program.of(config)


def stepped(program):
    return jax.jit(functools.partial(step, program))


def test_who_shares_a_program():
    """Seeds, per-run numbers, sizes that may be padded, steps, thresholds and how parameters start."""
    like = [WIDE, BASE.replace(optimizer__learning_rate=0.1), BASE.replace(steps=9), BASE.replace(threshold=0.5)]
    like += [BASE.replace(model__initial="xavier"), BASE.replace(task__dim=3)]
    unlike = [BASE.replace(task__length=7), BASE.replace(model__width=4), BASE.replace(batch=4), BASE.replace(n_train=9)]
    unlike += [BASE.replace(precision="bf16"), BASE.replace(probes=(clock,)), BASE.replace(n_test=8)]
    assert {program_key(config) for config in like} == {program_key(BASE)}
    assert {program_name(config) for config in like} == {program_name(BASE)}
    assert len({program_key(config) for config in [BASE, *unlike]}) == len(unlike) + 1
    assert len({program_name(config) for config in [BASE, *unlike]}) == len(unlike) + 1
    chains = [
        CHAIN,
        CHAIN.replace(model__scale=0.0),
        CHAIN.replace(task__groups__importance=1.3),
        CHAIN.replace(model__start="xavier"),
    ]
    assert len({program_key(config) for config in chains}) == 1
    assert program_key(FULL) != program_key(CHAIN)


def test_runs_on_the_published_teacher_share_a_program_and_keep_their_teacher():
    drawn = CHAIN.replace(task=MarkovChain(generated=4), n_train=None)
    published = drawn.replace(task__maps="published")
    assert program_key(published) == program_key(drawn)
    own, given, again = (start(alone(c), Run(c, seed)).truth.maps for c, seed in ((drawn, 0), (published, 0), (published, 1)))
    np.testing.assert_array_equal(given, again)
    np.testing.assert_array_equal(given, published.task.truth(jax.random.key(0)).maps)
    assert not np.allclose(own, given)


def test_a_model_that_does_not_pad_gets_a_program_for_each_size():
    configs = [OWN.replace(task=SingleLocation(4, dim)) for dim in (2, 4)]
    assert len(groups_of([Run(config, 0) for config in configs])) == 2
    assert largest_sizes(configs) == {}


def test_the_name_of_a_program_holds_no_address():
    """It names checkpoints, which another process looks for: functions are part of it by their names."""
    config = OWN.replace(probes=(clock,), optimizer=Optimizer(optax.adam, 0.1))

    def clock_like(params, output, batch, truth, step):
        return {}

    assert program_name(config.replace(probes=(clock_like,))) != program_name(config)
    clock_like.__module__, clock_like.__qualname__ = clock.__module__, "clock"
    assert program_name(config.replace(probes=(clock_like,))) == program_name(config)
    assert program_key(config.replace(probes=(clock_like,))) != program_key(config)


def test_data_are_the_same_alone_and_batched():
    """Tasks of two sizes in one stack, against each task on its own."""
    configs = [WIDE, BASE]
    program, sizes = Program.of(*configs), largest_sizes(configs)
    stack = jax.tree.map(lambda *x: jnp.stack(x), *(start(program, Run(c, i), sizes) for i, c in enumerate(configs)))
    batched = jax.jit(jax.vmap(functools.partial(draw, program)))(stack._replace(step=jnp.array([3, 3])))
    for i, config in enumerate(configs):
        task, key = config.task, raw(jax.random.key(i))
        truth = jax.jit(task.truth)(fold_in(key, 0))
        by_itself = jax.jit(lambda key, truth, task=task: task.batch(key, 8, truth))(fold_in(fold_in(key, 2), 3), truth)
        inputs, target = np.asarray(batched.inputs[i]), np.asarray(batched.target[i])
        assert not inputs[..., task.dim + 1 :].any()
        assert not target[:, task.dim :].any()
        # The last bits of a logarithm, and of a sum with zeros among its terms.
        np.testing.assert_allclose(inputs[..., : task.dim + 1], by_itself.inputs, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(target[:, : task.dim], by_itself.target, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(batched.relevant[i], by_itself.relevant)


@pytest.mark.slow
def test_a_plain_loop_takes_the_same_path_with_adamw():
    """A weight decay large enough to matter. Single steps of the engine, so that the parameters themselves can be compared; the
    loop has the plain forward, which has every position and folds nothing."""
    run = Run(BASE.replace(model__layers=2, optimizer=Optimizer("adamw", 0.01, weight_decay=0.3)), 0)
    program = alone(run.config)
    slot, take, losses = start(program, run), stepped(program), []
    with products("fp32"):
        for _ in range(run.config.steps):
            slot, loss = take(slot)
            losses.append(float(loss))
    params, _, trained = plain_run(run, optax.adamw(0.01, weight_decay=0.3))
    np.testing.assert_allclose(losses, trained, rtol=1e-4)
    for (path, ours), theirs in zip(jax.tree_util.tree_leaves_with_path(slot.params), jax.tree.leaves(params), strict=True):
        # A softmax does not see the bias of the keys: its gradient is all rounding, which Adam scales up to full steps.
        if not jax.tree_util.keystr(path).endswith(".key.bias"):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_the_bf16_copy_of_parameters_is_that_of_the_step():
    """A chunk hands it from step to step; a single step casts for itself. With an old copy the losses would be others."""
    run = run_of(optimizer=Optimizer("sgd", 0.1), precision="bf16", steps=8)
    program = alone(run.config)
    take = stepped(program)
    old = lower("bf16", start(program, run).params)
    assert {leaf.dtype for leaf in jax.tree.leaves(old)} == {jnp.bfloat16.dtype}
    with products("bf16"):
        stack = jax.tree.map(lambda x: x[None], start(program, run))
        _, metrics = jax.jit(functools.partial(chunk, program))(stack, jnp.int32(8), jnp.array([8]))
        fresh, stale = start(program, run), start(program, run)
        totals = np.zeros(2)
        for _ in range(8):
            fresh, loss = take(fresh)
            stale, late = take(stale, old)
            totals += float(loss), float(late)
    assert float(metrics["train_loss"][0]) == pytest.approx(totals[0], rel=2e-3)
    assert abs(totals[1] / totals[0] - 1) > 0.02
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh.params)} == {jnp.float32.dtype}


def test_finite_data_are_gone_through_in_epochs():
    """Every row once per epoch, in another order in each; what does not fill a batch is left out of that epoch."""
    config = OWN.replace(n_train=20)
    program, run = alone(config), Run(config, 3)
    slot: Any = start(program, run)
    key = raw(jax.random.key(3))
    rows = jax.jit(lambda: config.task.batch(user_key(fold_in(fold_in(key, 2), 0)), 20, slot.truth).inputs)()
    np.testing.assert_allclose(slot.dataset.inputs, rows, rtol=1e-6)
    take = jax.jit(functools.partial(draw, program))

    def indices(step):
        batch = np.asarray(take(slot._replace(step=jnp.int32(step))).inputs)
        distance = np.abs(batch[:, None] - np.asarray(slot.dataset.inputs)[None]).sum((2, 3))
        assert (distance.min(1) == 0).all()
        return distance.argmin(1).tolist()

    first, second = [*indices(0), *indices(1)], [*indices(2), *indices(3)]
    assert len(set(first)) == len(set(second)) == 16
    assert first != second
    fewer = OWN.replace(n_train=5)
    assert jax.eval_shape(lambda: draw(alone(fewer), start(alone(fewer), Run(fewer, 0)))).inputs.shape == (5, 4, 3)


@pytest.mark.slow
def test_training_on_finite_data_is_plain_optax():
    """Ten steps of the chain written out: the rows that `draw` gives, the plain forward, clipped AdamW."""
    run = Run(CHAIN, 0)
    program, task, model = alone(CHAIN), CHAIN.task, CHAIN.model
    slot, (result,) = start(program, run), train([run])
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05, weight_decay=0.01))
    params, tap = slot.params, Tap(task.spec)
    opt_state = optimizer.init(params)

    def loss(params, batch):
        logits = jax.nn.log_softmax(model.apply(params, batch.inputs, tap).value, -1)
        return -jnp.take_along_axis(logits, batch.target[:, :, None], -1).mean()

    @jax.jit
    def follow(params, opt_state, step):
        gradient = jax.grad(loss)(params, draw(program, slot._replace(step=step)))
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    for number in range(10):
        params, opt_state = follow(params, opt_state, jnp.int32(number))
    tested = jax.jit(lambda params: loss(params, task.batch(user_key(slot.test_key), 64, slot.truth)))(params)
    assert float(tested) == pytest.approx(float(result.curves["loss"][-1]), rel=1e-4)


@pytest.mark.slow
def test_training_drops_other_units_at_every_step_and_tests_none():
    wet, dry = alone(FULL), FULL.replace(model__dropout=0.0)
    slot = start(wet, Run(FULL, 0))
    data = jax.jit(functools.partial(draw, wet))(slot)

    @functools.partial(jax.jit, static_argnums=0)
    def loss(program, slot, number):
        """That of the output in a step of training; without a number, in a test."""
        key = None if number is None else user_key(fold_in(fold_in(slot.data_key, 3), number))
        return jnp.mean(FULL.task.loss(forward(program, slot, slot.params, data, key=key), data))

    with products("fp32"):
        now = float(stepped(wet)(slot)[1])
        # The same batch in another step: only what is dropped differs.
        both = [float(loss(wet, slot, number)) for number in (0, 1)]
        undropped = float(loss(alone(dry), start(alone(dry), Run(dry, 0)), 0))
        tested = float(loss(wet, slot, None))
    assert now == pytest.approx(both[0], rel=1e-5)
    assert len({*both, undropped}) == 3
    assert tested == pytest.approx(undropped, rel=1e-6)


def test_probes_of_taps_see_the_first_test_sequences_by_the_plain_forward():
    config = OWN.replace(n_test=TAPPED + 8, probes=(largest_score, clock))
    program = alone(config)
    slot = start(program, Run(config, 0))
    curves = jax.jit(functools.partial(evaluate, program))(slot._replace(step=jnp.int32(7)))
    assert float(curves["clock"]) == 7
    assert float(curves["largest_score"]) == pytest.approx(float(slot.params["scores"].max()))
    test = config.task.batch(user_key(slot.test_key), TAPPED + 8, slot.truth)
    output: Any = Heads().apply(slot.params, test.inputs)
    assert float(curves["loss"]) == pytest.approx(float(config.task.loss(output, test).mean()), rel=1e-5)
    np.testing.assert_allclose(curves["attention"][0], output.attention[:, 0, :, -1].mean(0), rtol=1e-5)
