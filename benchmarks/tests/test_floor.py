"""The floor is below what our programs do, and near it where nothing but products is left."""

import jax
import pytest

from benchmarks.floor import Work, _transformer, floor_seconds, floor_work
from benchmarks.training import Case
from emergo.models import EquinoxModel, Transformer
from emergo.tasks import SingleLocation
from emergo.training import Config, Run
from emergo.training._cost import step_cost
from emergo.training._program import Program, start

CASES = {
    "two layers": Case(2, 4, 64, 16, 1, "fp32"),
    "two layers, one head": Case(2, 1, 64, 16, 1, "fp32"),
    "few features": Case(2, 1, 32, 4, 1, "fp32"),
    "one layer": Case(1, 1, 64, 16, 1, "fp32"),
    "recall": Case(2, 2, 17, 32, 1, "fp32", recall=True),
    "chain": Case(1, 3, 25, 50, 1, "fp32", chain=True),
}


FAST = 1e30
SLOW = 1.0


def floor_operations(config, rate=SLOW, bandwidth=FAST):
    """By default of a device on which operations alone take time."""
    return sum(work.operations for work in floor_work(config, rate, bandwidth).values())


def program_operations(config):
    """Products in the step that the engine compiles, counted in its jaxpr."""
    program = Program.of(config)
    return step_cost(program, jax.eval_shape(lambda: start(program, Run(config, 0)))).operations


@pytest.mark.usefixtures("fast_paths")
@pytest.mark.parametrize("name", CASES)
def test_no_program_does_less_than_the_floor(name):
    """At least 45% of the products are needed; the rest are those with one-hot matrices and with
    positions."""
    config = CASES[name].config
    floor = floor_operations(config)
    done = program_operations(config)
    assert 0.45 * done < floor <= 1.001 * done


def test_the_floor_of_two_layers_by_hand():
    """Width 8, hidden 32, T = 4, 3 inputs, batch 2, counted on paper: first layer, last layer and
    readout, times three. But the gradient behind the first MLP is of five vectors, so that the
    backward pass of its second map is smaller, and tokens, which enter queries, keys, values and
    the stream, have no gradient."""
    model = Transformer(width=8, heads=2)
    config = Config(
        SingleLocation(4, 2, position="random", indicator=True), model, batch=2, precision="fp32"
    )
    tokens = 2 * 8 * (3 * 3 * 8 + 3 * 8)
    first = 2 * 8 * (2 * 4 * 8 + 8 * 8 + 2 * 8 * 32)
    last = 2 * 8 * 2 * 8 * 2 + 2 * 2 * (4 * 8 * 8 + 2 * 8 * 32 + (3 + 2) * 8)
    others = (
        2 * tokens + 3 * (first + last) - 3 * (2 * 8 * 32 * 8)
    )  # all but the first MLP's second map

    def operations(**way):
        return sum(work.operations for work in _transformer(config, model, **way).values())

    assert operations(formed=True, folded=False) == others + 2 * 8 * 32 * 8 + 2 * (2 * 8 * 32 * 5)
    # The MLP's output is not formed: scores and sums of two heads, forward and back.
    unformed = others + 4 * (2 * 8 * 32 * 2) + 2 * 8 * 32 * 5
    assert operations(formed=False, folded=False) == unformed
    # Nor are queries, keys and values: scores and sums of two heads are of 3 features and 4
    # positions.
    plain = 2 * (2 * 8 * 3 * 3 * 8) + 3 * (2 * 8 * (2 * 4 * 8 + 8 * 8))
    folded = 2 * (2 * 8 * 2 * (3 * (3 + 4) + 2 * 3 * 4)) + 3 * (2 * 8 * 2 * (3 + 4) * 8)
    assert operations(formed=False, folded=True) == unformed - plain + folded
    assert floor_operations(config) == min(unformed, unformed - plain + folded)


def make(key, spec):
    raise AssertionError("a floor needs no parameters")


def test_other_models_have_no_floor():
    config = Config(SingleLocation(4, 2), EquinoxModel(make), precision="fp32")
    with pytest.raises(TypeError, match="EquinoxModel"):
        floor_work(config, SLOW, FAST)


def test_the_bytes_of_one_layer_by_hand():
    """Width 8, T = 4, 3 inputs, batch 2, one head, no MLP, in fp32: counted on paper."""
    model = Transformer(layers=1, heads=1, width=8, mlp=False)
    config = Config(
        SingleLocation(4, 2, position="random", indicator=True), model, batch=2, precision="fp32"
    )
    params = (3 * 8 + 8) + 4 * (8 * 8 + 8) + (8 * 2 + 2)
    tokens = 8 * 3 + 3 * 2 + 8 * 2
    maps = 4 * (2 * 8 + 8 * 8 + 2 * 8) + (2 * 5 + 5 * 8 + 2 * 8)
    work = floor_work(config, SLOW, FAST)
    assert work["products"].bytes == 4 * (
        2 * tokens + 3 * maps
    )  # scores and sums in one pass; tokens have no gradient
    assert work["attention"] == Work(0, 0)  # one query is a product
    assert work["data"].bytes == 2 * 4 * 2 * 4 * 3
    # Adam: gradient, parameter and two moments read, parameter and moments written; and its count
    # of steps.
    assert work["optimizer"].bytes == 4 * (7 * params) + 8


def test_tokens_enter_the_stream_with_the_output_of_the_first_attention():
    """Width 8, no MLP, T = 4, 3 inputs, batch 2, two layers: bytes of products, in fp32, counted on
    paper; rotated keys cannot be folded."""
    model = Transformer(layers=2, heads=1, width=8, mlp=False, positions="rope")
    config = Config(
        SingleLocation(4, 2, position="random", indicator=True), model, batch=2, precision="fp32"
    )
    mapped = 8 * 3 + 3 * 24 + 8 * 24
    added = 8 * 3 + 3 * 8
    out = 8 * 8 + 8 * 8 + 8 * 8
    asked = 8 * 8 + 8 * 2 + 8 * 2
    last = 4 * (2 * 8 + 8 * 8 + 2 * 8) + (2 * 5 + 5 * 8 + 2 * 8)
    work = floor_work(config, SLOW, FAST)
    assert work["products"].bytes == 4 * (2 * (mapped + added) + 3 * (out + asked + last))


def test_the_gradient_of_hidden_features_is_read_once_behind_the_last_query():
    """Width 8, hidden 32, T = 4, 3 inputs, batch 2, two heads, two layers: bytes of products, in
    fp32, counted on paper."""
    model = Transformer(layers=2, heads=2, width=8)
    config = Config(
        SingleLocation(4, 2, position="random", indicator=True), model, batch=2, precision="fp32"
    )
    mapped = 8 * 3 + 3 * 24 + 8 * 24
    added = 8 * 3 + 3 * 8
    out = 8 * 8 + 8 * 8 + 8 * 8
    up = 8 * 8 + 8 * 32 + 8 * 32
    asked = 8 * 8 + 8 * 4 + 8 * 4
    last = 4 * (2 * 8 + 8 * 8 + 2 * 8) + 2 * (2 * 8 + 8 * 32 + 2 * 32) + (2 * 5 + 5 * 8 + 2 * 8)
    others = 2 * (mapped + added) + 3 * (out + up + asked + last)
    made = 8 * 5 + 5 * 32 + 8 * 32  # from five vectors
    # It goes through the first map where it is made, and the stream's gradient is written there.
    fused = 8 * (32 + 8)
    formed = others + (8 * 32 + 32 * 8 + 8 * 8) + 2 * made - fused
    unformed = others + 2 * (8 * 32 + 32 * 4 + 8 * 4) + made - fused
    for way, counted in ((True, formed), (False, unformed)):
        assert _transformer(config, model, way, False)["products"].bytes == 4 * counted


def test_the_longer_of_arithmetic_and_memory_counts_for_each_class():
    config = CASES["two layers"].config
    work = floor_work(config, SLOW, FAST)
    assert set(work) == {"products", "attention", "data", "optimizer"}
    assert floor_seconds(config, SLOW, FAST) == pytest.approx(
        sum(each.operations for each in work.values())
    )
    moved = sum(each.bytes for each in floor_work(config, FAST, SLOW).values())
    assert floor_seconds(config, FAST, SLOW) == pytest.approx(moved)
    assert floor_seconds(config, SLOW, SLOW) > max(floor_seconds(config, SLOW, FAST), moved)
