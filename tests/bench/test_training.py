"""The floor is below what our programs do, and near it where nothing but products is left."""

import jax
import pytest

from emergo.bench._training import Case, floor_operations
from emergo.engine import Config, Run
from emergo.engine._cost import step_cost
from emergo.engine._program import Program, start
from emergo.models import EquinoxModel, Transformer
from emergo.tasks import SingleLocation

CASES = {
    "two layers": Case(2, 4, 64, 16, 1, "fp32"),
    "one layer": Case(1, 1, 64, 16, 1, "fp32"),
    "recall": Case(2, 2, 17, 32, 1, "fp32", recall=True),
    "chain": Case(1, 3, 25, 50, 1, "fp32", chain=True),
}


def program_operations(config):
    """Products in the step that the engine compiles, counted in its jaxpr."""
    program = Program.of(config)
    return step_cost(program, jax.eval_shape(lambda: start(program, Run(config, 0)))).operations


@pytest.mark.parametrize("name", CASES)
def test_no_program_does_less_than_the_floor(name):
    """At least 45% of the products are needed; the rest are those with one-hot matrices and with positions."""
    config = CASES[name].config
    floor, done = floor_operations(config), program_operations(config)
    assert 0.45 * done < floor <= 1.001 * done


def test_the_floor_of_two_layers_by_hand():
    """Width 8, hidden 32, T = 4, 3 inputs, batch 2, counted on paper: first layer, last layer and readout, times three."""
    config = Config(
        SingleLocation(4, 2, position="random", indicator=True), Transformer(width=8, heads=2), batch=2, precision="fp32"
    )
    first = 2 * 8 * (3 * 3 * 8 + 2 * 4 * 8 + 8 * 8 + 2 * 8 * 32) + 2 * 8 * 3 * 8
    last = 2 * 8 * 2 * 8 * 2 + 2 * 2 * (4 * 8 * 8 + 2 * 8 * 32 + (3 + 2) * 8)
    assert floor_operations(config) == 3 * (first + last)


def make(key, spec):
    raise AssertionError("a floor needs no parameters")


def test_other_models_have_no_floor():
    config = Config(SingleLocation(4, 2), EquinoxModel(make), precision="fp32")
    with pytest.raises(TypeError, match="EquinoxModel"):
        floor_operations(config)
