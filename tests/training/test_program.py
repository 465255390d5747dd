"""One training step: the data, the arithmetic and the update, compared with plain Optax."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from emergo.core.contract import Tap
from emergo.core.random import fold_in, raw
from emergo.training._program import (
    TAPPED,
    Program,
    chunk,
    draw,
    evaluate,
    forward,
    largest_sizes,
    lower,
    products,
    program_name,
    start,
    step,
    user_key,
)

from .own import BASE as OWN
from .own import CHAIN as LONG_CHAIN
from .own import TRANSFORMER, Heads, clock, largest_score, run_of
from .untyped import ChainTransformer, MarkovChain, Optimizer, Run, SingleLocation, groups_of, train

BASE = TRANSFORMER.replace(task__dim=2, steps=12)
CHAIN = LONG_CHAIN.replace(steps=10)
WIDE = BASE.replace(task__dim=4, task__burst=3, task__repeat=0.3)
FULL = CHAIN.replace(
    model=ChainTransformer(heads=2, width=8, hidden=8),
    n_train=None,
    optimizer=Optimizer("sgd", 0.1),
)


def stepped(program):
    return jax.jit(functools.partial(step, program))


def count_programs(*configs):
    return len(groups_of([Run(config, 0) for config in configs]))


@pytest.mark.parametrize(
    "changes",
    [
        {"task__dim": 4, "task__burst": 3, "task__repeat": 0.3},
        {"optimizer__learning_rate": 0.1},
        {"steps": 9},
        {"threshold": 0.5},
        {"model__initial": "xavier"},
    ],
)
def test_runs_share_a_program_if_only_numbers_differ(changes):
    assert count_programs(BASE, BASE.replace(**changes)) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"task__length": 7},
        {"model__width": 4},
        {"batch": 4},
        {"n_train": 9},
        {"precision": "bf16"},
        {"probes": (clock,)},
        {"n_test": 8},
    ],
)
def test_runs_with_other_structures_do_not_share_a_program(changes):
    assert count_programs(BASE, BASE.replace(**changes)) == 2


def test_chains_share_a_program():
    changes = [{"model__scale": 0.0}, {"task__groups__importance": 1.3}, {"model__start": "xavier"}]
    assert count_programs(CHAIN, *(CHAIN.replace(**change) for change in changes)) == 1
    assert count_programs(CHAIN, FULL) == 2


def test_runs_on_the_published_teacher_share_a_program_and_keep_their_teacher():
    drawn = CHAIN.replace(task=MarkovChain(generated=4), n_train=None)
    published = drawn.replace(task__maps="published")
    assert count_programs(drawn, published) == 1
    own, given, again = (
        start(Program.of(c), Run(c, seed)).truth.maps
        for c, seed in ((drawn, 0), (published, 0), (published, 1))
    )
    np.testing.assert_array_equal(given, again)
    np.testing.assert_array_equal(given, published.task.truth(jax.random.key(0)).maps)
    assert not np.allclose(own, given)


def test_a_model_that_does_not_pad_needs_a_program_per_size():
    configs = [OWN.replace(task=SingleLocation(4, dim)) for dim in (2, 4)]
    assert count_programs(*configs) == 2
    assert largest_sizes(configs) == {}


def test_the_name_of_a_program_is_the_same_in_every_process():
    """Checkpoints are named by it. So functions count by their names, not by their addresses."""
    config = OWN.replace(probes=(clock,), optimizer=Optimizer(optax.adam, 0.1))

    def clock_like(params, output, batch, truth, step):
        return {}

    other = config.replace(probes=(clock_like,))
    assert program_name(other) != program_name(config)
    clock_like.__module__ = clock.__module__
    clock_like.__qualname__ = "clock"
    assert program_name(other) == program_name(config)
    assert count_programs(config, other) == 2  # they are still different functions


def test_data_is_the_same_alone_and_in_a_padded_stack():
    """A stack with tasks of two sizes, compared with each task alone."""
    configs = [WIDE, BASE]
    program = Program.of(*configs)
    sizes = largest_sizes(configs)
    stack = jax.tree.map(
        lambda *x: jnp.stack(x), *(start(program, Run(c, i), sizes) for i, c in enumerate(configs))
    )
    batched = jax.jit(jax.vmap(functools.partial(draw, program)))(
        stack._replace(step=jnp.array([3, 3]))
    )
    for i, config in enumerate(configs):
        task = config.task
        key = raw(jax.random.key(i))
        truth = jax.jit(task.truth)(fold_in(key, 0))
        by_itself = jax.jit(lambda key, truth, task=task: task.batch(key, 8, truth))(
            fold_in(fold_in(key, 2), 3), truth
        )
        inputs = np.asarray(batched.inputs[i])
        target = np.asarray(batched.target[i])
        assert not inputs[..., task.dim + 1 :].any()
        assert not target[:, task.dim :].any()
        # Rounding of a logarithm, and of a sum with additional zeros.
        np.testing.assert_allclose(
            inputs[..., : task.dim + 1], by_itself.inputs, rtol=1e-6, atol=1e-6
        )
        np.testing.assert_allclose(target[:, : task.dim], by_itself.target, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(batched.relevant[i], by_itself.relevant)


def test_the_bf16_copy_of_parameters_is_up_to_date():
    """A chunk passes the copy from step to step. A stale copy would change the losses."""
    run = run_of(optimizer=Optimizer("sgd", 0.1), precision="bf16", steps=8)
    program = Program.of(run.config)
    take = stepped(program)
    old = lower("bf16", start(program, run).params)
    assert {leaf.dtype for leaf in jax.tree.leaves(old)} == {jnp.bfloat16.dtype}
    with products("bf16"):
        stack = jax.tree.map(lambda x: x[None], start(program, run))
        _, metrics = jax.jit(functools.partial(chunk, program))(stack, jnp.int32(8), jnp.array([8]))
        fresh = start(program, run)
        stale = start(program, run)
        totals = np.zeros(2)
        for _ in range(8):
            fresh, loss = take(fresh)
            stale, late = take(stale, old)
            totals += float(loss), float(late)
    assert float(metrics["train_loss"][0]) == pytest.approx(totals[0], rel=2e-3)
    assert abs(totals[1] / totals[0] - 1) > 0.02
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh.params)} == {jnp.float32.dtype}


def test_a_finite_data_set_is_read_in_epochs():
    """Every row once per epoch, in a new order; rows that do not fill a batch are left out."""
    config = OWN.replace(n_train=20)
    program = Program.of(config)
    run = Run(config, 3)
    slot: Any = start(program, run)
    key = raw(jax.random.key(3))
    rows = jax.jit(
        lambda: config.task.batch(user_key(fold_in(fold_in(key, 2), 0)), 20, slot.truth).inputs
    )()
    np.testing.assert_allclose(slot.dataset.inputs, rows, rtol=1e-6)
    take = jax.jit(functools.partial(draw, program))

    def indices(step):
        batch = np.asarray(take(slot._replace(step=jnp.int32(step))).inputs)
        distance = np.abs(batch[:, None] - np.asarray(slot.dataset.inputs)[None]).sum((2, 3))
        assert (distance.min(1) == 0).all()
        return distance.argmin(1).tolist()

    first = [*indices(0), *indices(1)]
    second = [*indices(2), *indices(3)]
    assert len(set(first)) == len(set(second)) == 16
    assert first != second
    fewer = OWN.replace(n_train=5)
    assert jax.eval_shape(
        lambda: draw(Program.of(fewer), start(Program.of(fewer), Run(fewer, 0)))
    ).inputs.shape == (5, 4, 3)


@pytest.mark.slow
def test_training_on_a_finite_data_set_is_plain_optax():
    """Ten steps of the chain by hand: rows from `draw`, `apply`, and clipped AdamW."""
    run = Run(CHAIN, 0)
    program = Program.of(CHAIN)
    task = CHAIN.task
    model = CHAIN.model
    slot = start(program, run)
    (result,) = train([run])
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05, weight_decay=0.01))
    params = slot.params
    tap = Tap(task.spec)
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
    tested = jax.jit(
        lambda params: loss(params, task.batch(user_key(slot.test_key), 64, slot.truth))
    )(params)
    assert float(tested) == pytest.approx(float(result.curves["loss"][-1]), rel=1e-4)


@pytest.mark.slow
def test_dropout_differs_between_steps_and_is_off_in_tests():
    wet = Program.of(FULL)
    dry = FULL.replace(model__dropout=0.0)
    slot = start(wet, Run(FULL, 0))
    data = jax.jit(functools.partial(draw, wet))(slot)

    @functools.partial(jax.jit, static_argnums=0)
    def loss(program, slot, number):
        """Compute the training loss of a step, or a test loss for number None."""
        key = None if number is None else user_key(fold_in(fold_in(slot.data_key, 3), number))
        return jnp.mean(FULL.task.loss(forward(program, slot, slot.params, data, key=key), data))

    with products("fp32"):
        now = float(stepped(wet)(slot)[1])
        # The same batch in another step: only the dropout differs.
        both = [float(loss(wet, slot, number)) for number in (0, 1)]
        undropped = float(loss(Program.of(dry), start(Program.of(dry), Run(dry, 0)), 0))
        tested = float(loss(wet, slot, None))
    assert now == pytest.approx(both[0], rel=1e-5)
    assert len({*both, undropped}) == 3
    assert tested == pytest.approx(undropped, rel=1e-6)


def test_probes_of_taps_see_the_first_test_sequences():
    config = OWN.replace(n_test=TAPPED + 8, probes=(largest_score, clock))
    program = Program.of(config)
    slot = start(program, Run(config, 0))
    curves = jax.jit(functools.partial(evaluate, program))(slot._replace(step=jnp.int32(7)))
    assert float(curves["clock"]) == 7
    assert float(curves["largest_score"]) == pytest.approx(float(slot.params["scores"].max()))
    test = config.task.batch(user_key(slot.test_key), TAPPED + 8, slot.truth)
    output: Any = Heads().apply(slot.params, test.inputs)
    assert float(curves["loss"]) == pytest.approx(
        float(config.task.loss(output, test).mean()), rel=1e-5
    )
    np.testing.assert_allclose(
        curves["attention"][0], output.attention[:, 0, :, -1].mean(0), rtol=1e-5
    )
