"""Estimates of cost, the grid of evaluations, and the number of runs trained at once."""

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo.training._config import next_evaluation
from emergo.training._cost import (
    compile_chunk,
    step_cost,
)
from emergo.training._program import Program, largest_sizes, start

from .own import BASE
from .untyped import (
    ChainTransformer,
    Config,
    MarkovChain,
    MinimalAttention,
    Optimizer,
    Run,
    SingleLocation,
    Transformer,
    plan_group,
)

SMALL = Config(
    SingleLocation(6, 4),
    Transformer(layers=1, heads=2, width=8),
    batch=8,
    n_test=16,
    precision="fp32",
)
CHAIN = Config(
    MarkovChain(vocabulary=5, generated=4),
    MinimalAttention(heads=2),
    Optimizer("adamw", 0.05),
    precision="fp32",
)


def cost_of(config):
    program = Program.of(config)
    return step_cost(program, jax.eval_shape(lambda: start(program, Run(config, 0))))


@given(st.integers(0, 50_000))
def test_evaluations_are_close_enough(step):
    """At most 25 steps or 2% apart, which is the resolution of emergence times."""
    after = next_evaluation(step)
    assert 25 <= after - step <= max(25, 0.02 * step)
    assert (after - step) % 25 == 0


def test_the_grid_of_evaluations():
    """Multiples of 25 from 0 on, about 200 of them in 50,000 steps."""
    grid = [0]
    while grid[-1] < 50_000:
        grid.append(next_evaluation(grid[-1]))
    assert grid[:4] == [0, 25, 50, 75]
    assert all(step % 25 == 0 for step in grid)
    assert 150 < len(grid) < 300
    assert [next_evaluation(s, 5) for s in (0, 5, 495, 1000, 4000)] == [5, 10, 500, 1020, 4080]


@pytest.mark.parametrize(
    "config", [SMALL, CHAIN, CHAIN.replace(model=ChainTransformer(heads=2, width=8, hidden=8))]
)
def test_cost_grows_with_the_model_and_the_batch(config):
    cost = cost_of(config)
    deeper = cost_of(config.replace(model__layers=2))
    assert deeper.operations > cost.operations > 0
    assert deeper.bytes > cost.bytes > 0
    half = cost_of(config.replace(batch=config.batch // 2))
    assert half.operations == pytest.approx(cost.operations / 2, rel=0.1)
    assert cost.seconds("gpu") < cost.seconds("cpu") < deeper.seconds("cpu")


def test_operations_of_a_model_of_the_user():
    """Counted by hand: attention weights times inputs (2·2·8·4·3), and the maps of two heads
    (2·8·6·3), forward, and in the backward pass once for the weights and once more for what is
    below them; inputs need no gradient. The target (2·8·3·3)."""
    mixed = 2 * 2 * 8 * 4 * 3
    mapped = 2 * 8 * 6 * 3
    target = 2 * 8 * 3 * 3
    assert cost_of(BASE).operations == 2 * mixed + 3 * mapped + target


def test_a_program_is_halved_until_it_fits():
    program = Program.of(BASE)
    device = jax.devices()[0]
    slot = jax.eval_shape(lambda: start(program, Run(BASE, 0)))
    wide = compile_chunk(program, slot, 4, device)
    assert compile_chunk(program, slot, 4, device, wide.bytes).n_parallel == 4
    assert compile_chunk(program, slot, 4, device, wide.bytes - 1).n_parallel == 2
    assert compile_chunk(program, slot, 4, device, 1).n_parallel == 1  # even if it does not fit


def test_the_plan_of_a_group():
    configs = [SMALL, SMALL.replace(task__dim=2)]
    plan = plan_group([Run(config, 0) for config in configs], "cpu", budget=1e9)
    alone = plan_group([Run(configs[1], 0)], "cpu", budget=1e9)
    assert largest_sizes(configs)["dim"] == 4
    assert plan.run_bytes > alone.run_bytes
    assert plan.step_seconds > alone.step_seconds > 0
    assert plan_group([Run(SMALL, 0)], "cpu", budget=1.0).n_parallel == 1
