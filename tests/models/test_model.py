"""The contract of all models: shapes follow the spec, taps are documented, and `init` is a function
of its key.

Add a model to `CASES` to test it.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.contract import Output, Spec, Tap
from emergo.core.random import raw
from emergo.models import (
    Assembly,
    ChainTransformer,
    EquinoxModel,
    MinimalAttention,
    Model,
    ToyAttention,
    Transformer,
)
from emergo.models.fast import find_path

N = 3
LENGTH = 6
INPUTS = 5
OUTPUTS = 4


class Tapped(eqx.Module):
    linear: eqx.nn.Linear

    def __call__(self, x, tap):
        return self.linear(tap("flat", x.ravel()))


def make_tapped(key, spec):
    return Tapped(eqx.nn.Linear(spec.length * spec.inputs, spec.outputs, key=key))


class Case(NamedTuple):
    model: Model
    taps: dict[str, tuple[int, ...]]
    """Shapes at taps, without the axis of sequences."""
    tokens: bool = False
    answers: bool = True
    """True if several positions can be read."""


Shapes = dict[str, tuple[int, ...]]


def of_layers(layers: int, each: Shapes, **others: tuple[int, ...]) -> Shapes:
    per_layer = {f"layers.{i}.{name}": each[name] for i in range(layers) for name in each}
    return others | per_layer | {"value": (OUTPUTS,)}


MAPS = (2, LENGTH, LENGTH)
HEADS = (LENGTH, 2, 4)
STREAM = (LENGTH, 8)
BLOCK: Shapes = {
    "queries": HEADS,
    "keys": HEADS,
    "values": HEADS,
    "scores": MAPS,
    "pattern": MAPS,
    "mixed": HEADS,
}
BLOCK |= {"attention": STREAM, "mlp": STREAM, "output": STREAM}
SIZE = LENGTH + INPUTS
MINIMAL: Shapes = {
    "queries": (LENGTH, 2, SIZE),
    "scores": MAPS,
    "pattern": MAPS,
    "values": (LENGTH, 2, SIZE),
}
MINIMAL |= {"mixed": (LENGTH, 2, SIZE), "output": (LENGTH, SIZE)}
LAST: Shapes = {
    "layers.1.values": (LENGTH, 2, OUTPUTS),
    "layers.1.mixed": (LENGTH, 2, OUTPUTS),
    "layers.1.output": (LENGTH, OUTPUTS),
}
TOY: Shapes = {"scores": (1, 1, LENGTH), "pattern": (1, 1, LENGTH), "mixed": (INPUTS,)}
SMALL: dict[str, Any] = {"heads": 2, "width": 8}
CASES = {
    "transformer": Case(Transformer(**SMALL), of_layers(2, BLOCK, embed=STREAM)),
    "tokens": Case(
        Transformer(**SMALL, mask="causal"), of_layers(2, BLOCK, embed=STREAM), tokens=True
    ),
    "rope": Case(
        Transformer(**SMALL, layers=1, positions="rope"), of_layers(1, BLOCK, embed=STREAM)
    ),
    "sigmoid": Case(
        Transformer(**SMALL, attention="sigmoid", temperature="learned", norm="pre"),
        of_layers(2, BLOCK, embed=STREAM),
    ),
    "chain": Case(
        ChainTransformer(**SMALL, hidden=7, layers=2),
        of_layers(2, BLOCK, embed=STREAM),
        tokens=True,
    ),
    "minimal": Case(
        MinimalAttention(heads=2, layers=2, start="xavier"),
        of_layers(2, MINIMAL, embed=(LENGTH, SIZE)) | LAST,
        tokens=True,
    ),
    "toy": Case(ToyAttention(), of_layers(1, TOY), answers=False),
    "assembly": Case(
        Assembly(**SMALL),
        of_layers(1, dict.fromkeys(("scores", "pattern"), (2, 1, LENGTH))),
        answers=False,
    ),
    "equinox": Case(
        EquinoxModel(make_tapped), {"flat": (LENGTH * INPUTS,), "value": (OUTPUTS,)}, answers=False
    ),
}
SPEC = Spec(LENGTH, INPUTS, OUTPUTS)


@pytest.fixture(params=list(CASES))
def case(request) -> Case:
    return CASES[request.param]


def inputs_of(case: Case):
    rng = np.random.default_rng(0)
    if case.tokens:
        return jnp.asarray(rng.integers(INPUTS, size=(N, LENGTH)), jnp.int32)
    return jnp.asarray(rng.standard_normal((N, LENGTH, INPUTS)), jnp.float32)


def params_of(case: Case) -> Any:
    """Draw parameters away from the start, whose symmetries could hide a mistake."""
    rng = np.random.default_rng(0)
    structure = jax.eval_shape(lambda: case.model.init(jax.random.key(0), SPEC))
    return jax.tree.map(
        lambda x: jnp.asarray(0.3 * rng.standard_normal(x.shape), jnp.float32), structure
    )


def close(ours, theirs, tolerance=2e-5):
    np.testing.assert_allclose(
        ours, theirs, rtol=tolerance, atol=tolerance * float(np.abs(theirs).max())
    )


def test_init_is_a_function_of_the_key(case):
    keys = (jax.random.key(1), raw(jax.random.key(1)), jax.random.key(2))
    one, same, other = (jax.tree.leaves(case.model.init(key, SPEC)) for key in keys)
    for a, b in zip(one, same, strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_array_equal(a, b)
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("answers", [None, 2])
def test_shapes_follow_the_spec(case, answers):
    if answers and not case.answers:
        pytest.skip("reads the last position only")
    tap = Tap(SPEC._replace(answers=answers))
    output = case.model.apply(params_of(case), inputs_of(case), tap)
    assert isinstance(output, Output)
    assert output.value.shape == ((N, OUTPUTS) if answers is None else (N, answers, OUTPUTS))
    if output.attention is not None:
        assert output.attention.shape == (N, *output.attention.shape[1:3], LENGTH)
    if output.value_path is not None:
        assert output.value_path.shape == (INPUTS, OUTPUTS)


def test_taps_are_documented(case):
    tap = Tap(reads=["*"])
    output = case.model.apply(params_of(case), inputs_of(case), tap)
    assert {name: value.shape[1:] for name, value in tap.taken.items()} == case.taps
    assert all(len(value) == N for value in tap.taken.values())
    np.testing.assert_array_equal(tap.taken["value"], output.value)


def test_values_written_at_a_tap_are_used(case):
    """The identity changes nothing. Noise written at any tap changes the output."""
    params = params_of(case)
    inputs = inputs_of(case)
    plain = case.model.apply(params, inputs)
    same = case.model.apply(params, inputs, lambda name, x: x)
    np.testing.assert_array_equal(same.value, plain.value)
    rng = np.random.default_rng(2)
    for name, shape in case.taps.items():
        noise = jnp.asarray(rng.standard_normal((N, *shape)), jnp.float32)
        written = case.model.apply(
            params, inputs, lambda n, x, name=name, noise=noise: x + noise if n == name else x
        )
        assert np.abs(np.asarray(written.value - plain.value)).max() > 1e-4, name
        if name == "value":
            close(written.value, plain.value + noise)
        if name == "layers.0.pattern":
            assert plain.attention is not None
            assert written.attention is not None
            close(written.attention[:, 0], plain.attention[:, 0] + noise[:, :, -1])


def test_runs_can_be_stacked(case):
    """Runs with their own keys and parameters are one program under `vmap`."""
    keys = jnp.stack([raw(jax.random.key(seed)) for seed in range(2)])
    many = jax.jit(jax.vmap(lambda key: case.model.init(key, SPEC)))(keys)
    values = jax.jit(jax.vmap(lambda p: case.model.apply(p, inputs_of(case)).value))(many)
    alone = case.model.apply(case.model.init(keys[1], SPEC), inputs_of(case)).value
    close(values[1], alone, 1e-4)


@pytest.mark.parametrize("name", ["chain", "minimal"])
def test_the_context_may_differ_between_stacked_runs(name):
    models = [CASES[name].model.replace(context=context) for context in (1, 3)]
    params = params_of(CASES[name])
    inputs = inputs_of(CASES[name])
    stacked = jax.tree.map(lambda *numbers: jnp.asarray(numbers), *models)
    values = jax.vmap(lambda model: model.apply(params, inputs).value)(stacked)
    for i, model in enumerate(models):
        close(values[i], model.apply(params, inputs).value)
    assert np.abs(np.asarray(values[0] - values[1])).max() > 1e-4


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.model.pads])
@pytest.mark.parametrize("marks", [0, 1, 3])
def test_a_padded_init_contains_the_smaller_model(name, marks):
    """Bit for bit; to rounding if the used size is traced. Outputs agree too, so that tasks of
    several dims can share a program."""
    model = CASES[name].model
    small = model.init(jax.random.key(3), Spec(LENGTH, INPUTS, OUTPUTS, marks=marks))

    def padded(used):
        spec = Spec(LENGTH, INPUTS + 2, OUTPUTS + 1, marks=marks, used=used)
        return model.init(jax.random.key(3), spec)

    large = padded((INPUTS, OUTPUTS))
    traced = jax.jit(padded)((jnp.int32(INPUTS), jnp.int32(OUTPUTS)))
    assert jax.tree.structure(small) == jax.tree.structure(large)
    for one, other, third in zip(*map(jax.tree.leaves, (small, large, traced)), strict=True):
        expected = np.pad(one, [(0, b - a) for a, b in zip(one.shape, other.shape, strict=True)])
        np.testing.assert_array_equal(other, expected)
        np.testing.assert_allclose(third, expected, rtol=1e-6)
    inputs = inputs_of(CASES["transformer"])
    value = model.apply(large, jnp.pad(inputs, ((0, 0), (0, 0), (0, 2)))).value
    close(value[:, :OUTPUTS], model.apply(small, inputs).value)
    assert not np.any(value[:, OUTPUTS:])


# Pins of the numbers with which the recorded runs were made: sums of the absolute values of all
# initial parameters, and of the output.
RECORDED: list[tuple[Model, float, float]] = [
    (Transformer(**SMALL), 263.8046242624405, 3.373457685112953),
    (
        Transformer(**SMALL, initial="xavier", attention="biased", norm="pre"),
        417.75136785864015,
        10.16176164150238,
    ),
    (
        Transformer(**SMALL, initial="normal", positions="learned", layers=1),
        51.147250279062064,
        0.26555688795633614,
    ),
    (ChainTransformer(**SMALL), 255.56097732007038, 12.96180659532547),
    (ChainTransformer(**SMALL, start="xavier", layers=2), 514.7960468842648, 25.937410697340965),
    (MinimalAttention(scale=0.5), 85.88380533456802, 0.0),
    (MinimalAttention(start="xavier", layers=2), 316.46446544496575, 16.656914204359055),
    (ToyAttention(), 5.273318875581026, 0.4857832258567214),
]


@pytest.mark.parametrize(("model", "initial", "value"), RECORDED, ids=repr)
def test_recorded_runs_can_be_repeated(model, initial, value):
    features = jnp.asarray(np.sin(np.arange(72).reshape(3, 6, 4)), jnp.float32)
    marks = jnp.broadcast_to(jnp.arange(6)[:, None] == 2, (3, 6, 1)).astype(jnp.float32)
    if isinstance(model, Transformer):
        spec = Spec(6, 5, 4, marks=1)
        inputs = jnp.concatenate([marks, features], -1)
    elif isinstance(model, ToyAttention):
        spec = Spec(6, 4, 4)
        inputs = features
    else:
        spec = Spec(6, 5, 5, answers=2)
        inputs = jnp.arange(18).reshape(3, 6) * 7 % 5
    params: Any = model.init(jax.random.key(7), spec)
    total = sum(np.abs(np.asarray(leaf, np.float64)).sum() for leaf in jax.tree.leaves(params))
    assert total == pytest.approx(initial, rel=1e-7)
    outputs = [model.apply(params, inputs, Tap(spec))]
    path = find_path(model, spec)
    if path is not None:
        outputs.append(path.forward(model, params, inputs, Tap(spec), 0))
    for output in outputs:
        found = np.abs(np.asarray(output.value, np.float64)).sum()
        assert found == pytest.approx(value, rel=1e-5)
