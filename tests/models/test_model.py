"""What every model promises: shapes by the spec, documented taps, two forwards that agree, a start from the key.

A new model is one more entry of `CASES`.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo._contract import Output, Spec, Tap
from emergo._random import raw
from emergo.models import ChainTransformer, EquinoxModel, MinimalAttention, Model, ToyAttention, Transformer

N, LENGTH, INPUTS, OUTPUTS = 3, 6, 5, 4


class Tapped(eqx.Module):
    linear: eqx.nn.Linear

    def __call__(self, x, tap):
        return self.linear(tap("flat", x.ravel()))


def make_tapped(key, spec):
    return Tapped(eqx.nn.Linear(spec.length * spec.inputs, spec.outputs, key=key))


class Case(NamedTuple):
    model: Model
    taps: dict[str, tuple[int, ...]]
    """The shape at each, without the axis of sequences."""
    tokens: bool = False
    answers: bool = True
    """Whether it can be read at several positions."""


def of_layers(layers: int, each: dict[str, tuple[int, ...]], **others: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return others | {f"layers.{i}.{name}": shape for i in range(layers) for name, shape in each.items()} | {"value": (OUTPUTS,)}


Shapes = dict[str, tuple[int, ...]]
MAPS, HEADS, STREAM = (2, LENGTH, LENGTH), (LENGTH, 2, 4), (LENGTH, 8)
BLOCK: Shapes = {"queries": HEADS, "keys": HEADS, "values": HEADS, "scores": MAPS, "pattern": MAPS, "mixed": HEADS}
BLOCK |= {"attention": STREAM, "mlp": STREAM, "output": STREAM}
SIZE = LENGTH + INPUTS
MINIMAL: Shapes = {"queries": (LENGTH, 2, SIZE), "scores": MAPS, "pattern": MAPS, "values": (LENGTH, 2, SIZE)}
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
    "tokens": Case(Transformer(**SMALL, mask="causal"), of_layers(2, BLOCK, embed=STREAM), tokens=True),
    "rope": Case(Transformer(**SMALL, layers=1, positions="rope"), of_layers(1, BLOCK, embed=STREAM)),
    "sigmoid": Case(
        Transformer(**SMALL, attention="sigmoid", temperature="learned", norm="pre"), of_layers(2, BLOCK, embed=STREAM)
    ),
    "chain": Case(ChainTransformer(**SMALL, hidden=7, layers=2), of_layers(2, BLOCK, embed=STREAM), tokens=True),
    "minimal": Case(
        MinimalAttention(heads=2, layers=2, start="xavier"),
        of_layers(2, MINIMAL, embed=(LENGTH, SIZE)) | LAST,
        tokens=True,
    ),
    "toy": Case(ToyAttention(), of_layers(1, TOY), answers=False),
    "equinox": Case(EquinoxModel(make_tapped), {"flat": (LENGTH * INPUTS,), "value": (OUTPUTS,)}, answers=False),
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


def params_of(case: Case, seed: int = 0):
    """Away from the start, whose symmetries could hide a mistake."""
    rng = np.random.default_rng(seed)
    structure = jax.eval_shape(lambda: case.model.init(jax.random.key(0), SPEC))
    return jax.tree.map(lambda x: jnp.asarray(0.3 * rng.standard_normal(x.shape), jnp.float32), structure)


def close(ours, theirs, tolerance=2e-5):
    ours, theirs = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    largest = max(float(np.abs(x).max()) for x in theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest)


def test_the_start_is_a_function_of_the_key(case):
    one, same, other = (case.model.init(key, SPEC) for key in (jax.random.key(1), raw(jax.random.key(1)), jax.random.key(2)))
    assert jax.tree.structure(one) == jax.tree.structure(same) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(same), strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_array_equal(a, b)
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))


@pytest.mark.parametrize("answers", [None, 2])
def test_shapes_follow_the_spec_and_both_forwards_agree(case, answers):
    if answers and not case.answers:
        pytest.skip("read at the last position only")
    params, inputs, tap = params_of(case), inputs_of(case), Tap(SPEC._replace(answers=answers))
    weights = jnp.asarray(np.random.default_rng(1).standard_normal((OUTPUTS,)), jnp.float32)

    def graded(forward):
        def loss(params):
            output = forward(params, inputs, tap)
            return jnp.sum(jnp.sin(output.value) @ weights), output

        return jax.jit(jax.grad(loss, has_aux=True))(params)

    (by_apply, plain), (by_fast, fast) = graded(case.model.apply), graded(case.model.fast)
    for output in (plain, fast):
        assert isinstance(output, Output)
        assert output.value.shape == ((N, OUTPUTS) if answers is None else (N, answers, OUTPUTS))
        if output.attention is not None:
            assert output.attention.shape == (N, *output.attention.shape[1:3], LENGTH)
        if output.value_path is not None:
            assert output.value_path.shape == (INPUTS, OUTPUTS)
    close(fast, plain)
    close(by_fast, by_apply)


def test_taps_are_those_of_the_documentation(case):
    tap = Tap(reads=["*"])
    output = case.model.apply(params_of(case), inputs_of(case), tap)
    assert {name: value.shape[1:] for name, value in tap.taken.items()} == case.taps
    assert all(len(value) == N for value in tap.taken.values())
    np.testing.assert_array_equal(tap.taken["value"], output.value)
    fast = Tap(reads=["*"])
    case.model.fast(params_of(case), inputs_of(case), fast)
    assert set(fast.taken) in ({"value"}, set(case.taps))


def test_what_is_written_at_a_tap_is_what_goes_on(case):
    """A tap that changes nothing changes nothing; one that writes changes the value, also of the tap itself."""
    params, inputs = params_of(case), inputs_of(case)
    plain = np.asarray(case.model.apply(params, inputs).value)
    np.testing.assert_array_equal(case.model.apply(params, inputs, lambda name, x: x).value, plain)
    rng = np.random.default_rng(2)
    for name, shape in case.taps.items():
        noise = jnp.asarray(rng.standard_normal((N, *shape)), jnp.float32)
        written = case.model.apply(params, inputs, lambda n, x, name=name, noise=noise: x + noise if n == name else x)
        assert np.abs(np.asarray(written.value) - plain).max() > 1e-4, name
        if name == "value":
            close(written.value, plain + noise)
        if name == "layers.0.pattern":
            before = case.model.apply(params, inputs).attention
            assert before is not None
            assert written.attention is not None
            close(written.attention[:, 0], before[:, 0] + noise[:, :, -1])


def test_many_runs_are_one_program(case):
    """Under `vmap`, each with its own parameters and key."""
    keys = jnp.stack([raw(jax.random.key(seed)) for seed in range(2)])
    many = jax.jit(jax.vmap(lambda key: case.model.init(key, SPEC)))(keys)
    values = jax.jit(jax.vmap(lambda p: case.model.fast(p, inputs_of(case)).value))(many)
    alone = case.model.fast(case.model.init(keys[1], SPEC), inputs_of(case)).value
    close(values[1], alone, 1e-4)


@pytest.mark.parametrize("make", [ChainTransformer, MinimalAttention])
def test_the_context_is_a_number_of_a_run(make):
    """Predictors of several contexts share a program."""
    small: dict[str, Any] = (
        {"heads": 2, "width": 8, "hidden": 3} if make is ChainTransformer else {"heads": 2, "start": "xavier"}
    )
    models = [make(**small, context=context) for context in (1, 3)]
    params = models[0].init(jax.random.key(0), SPEC)
    inputs = inputs_of(CASES["chain"])
    stacked = jax.tree.map(lambda *numbers: jnp.asarray(numbers), *models)
    values = jax.vmap(lambda model: model.fast(params, inputs).value)(stacked)
    for i, model in enumerate(models):
        close(values[i], model.apply(params, inputs).value)
    assert np.abs(np.asarray(values[0] - values[1])).max() > 1e-4


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.model.pads])
@pytest.mark.parametrize("marks", [0, 1, 3])
def test_a_padded_start_is_that_of_the_smaller_model_bit_for_bit(name, marks):
    """Also where its size is traced, to rounding; and so are the outputs: the promise behind sharing a program between dims."""
    model = CASES[name].model
    small = model.init(jax.random.key(3), Spec(LENGTH, INPUTS, OUTPUTS, marks=marks))

    def padded(used):
        return model.init(jax.random.key(3), Spec(LENGTH, INPUTS + 2, OUTPUTS + 1, marks=marks, used=used))

    large, traced = padded((INPUTS, OUTPUTS)), jax.jit(padded)((jnp.int32(INPUTS), jnp.int32(OUTPUTS)))
    assert jax.tree.structure(small) == jax.tree.structure(large)
    for one, other, third in zip(*map(jax.tree.leaves, (small, large, traced)), strict=True):
        expected = np.pad(one, [(0, b - a) for a, b in zip(one.shape, other.shape, strict=True)])
        np.testing.assert_array_equal(other, expected)
        np.testing.assert_allclose(third, expected, rtol=1e-6)
    inputs = inputs_of(CASES["transformer"])
    wide = jnp.pad(inputs, ((0, 0), (0, 0), (0, 2)))
    for one, other in ((model.apply, model.apply), (model.fast, model.fast)):
        value = other(large, wide).value
        close(value[:, :OUTPUTS], one(small, inputs).value)
        assert not np.any(value[:, OUTPUTS:])


# As drawn and computed before models had a common base class, when the recorded runs were made: sums of absolute values of all
# initial numbers, and of the value.
RECORDED: list[tuple[Model, float, float]] = [
    (Transformer(**SMALL), 263.8046242624405, 3.373457685112953),
    (Transformer(**SMALL, initial="xavier", attention="biased", norm="pre"), 417.75136785864015, 10.16176164150238),
    (Transformer(**SMALL, initial="normal", positions="learned", layers=1), 51.147250279062064, 0.26555688795633614),
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
        spec, inputs = Spec(6, 5, 4, marks=1), jnp.concatenate([marks, features], -1)
    elif isinstance(model, ToyAttention):
        spec, inputs = Spec(6, 4, 4), features
    else:
        spec, inputs = Spec(6, 5, 5, answers=2), jnp.arange(18).reshape(3, 6) * 7 % 5
    params: Any = model.init(jax.random.key(7), spec)
    total = sum(np.abs(np.asarray(leaf, np.float64)).sum() for leaf in jax.tree.leaves(params))
    assert total == pytest.approx(initial, rel=1e-7)
    for forward in (model.apply, model.fast):
        output = np.asarray(forward(params, inputs, Tap(spec)).value, np.float64)
        assert np.abs(output).sum() == pytest.approx(value, rel=1e-5)
