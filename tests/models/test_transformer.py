"""The Transformer against NumPy and PyTorch, its initialisation and its options."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.contract import Spec, Tap
from emergo.core.errors import InputError
from emergo.core.random import raw
from emergo.models import Transformer
from emergo.models._layers import LayerNorm, Linear, dropped

LENGTH = 7
INPUTS = 4  # the first one is a mark
OUTPUTS = 2
SPEC = Spec(LENGTH, INPUTS, OUTPUTS, marks=1)


def made(options, seed=0):
    """Return a model, parameters drawn away from the start, and inputs."""
    model = Transformer(**({"width": 8, "heads": 2} | options))
    structure = jax.eval_shape(lambda: model.init(jax.random.key(0), SPEC))
    rng = np.random.default_rng(seed)

    def drawn(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    params = jax.tree.map(lambda x: 0.4 * drawn(*x.shape), structure)
    marks = jnp.asarray(np.arange(LENGTH) == np.array([[2], [LENGTH - 1]]), jnp.float32)
    return model, params, jnp.concatenate([marks[..., None], drawn(2, LENGTH, INPUTS - 1)], -1)


@pytest.fixture(autouse=True, scope="module")
def exact() -> Iterator[None]:
    """Use one precision, so that nothing is compiled twice."""
    with jax.default_matmul_precision("highest"):
        yield


def close(ours, theirs, tolerance=1e-5):
    """Compare with a tolerance relative to the entry or to the largest entry of all arrays."""
    ours = jax.tree.leaves(ours)
    theirs = jax.tree.leaves(theirs)
    largest = max(float(np.abs(x).max()) for x in theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest)


def test_tokens_are_one_hot_inputs():
    model, params, _ = made({})
    tokens = jnp.asarray(np.random.default_rng(1).integers(INPUTS, size=(3, LENGTH)), jnp.int32)
    by_token = model.apply(params, tokens)
    by_row = model.apply(params, jax.nn.one_hot(tokens, INPUTS))
    np.testing.assert_array_equal(by_token.value, by_row.value)

    def gradient(inputs):
        return jax.grad(lambda p: jnp.sum(jnp.sin(model.apply(p, inputs).value)))(params)

    one, other = gradient(tokens), gradient(jax.nn.one_hot(tokens, INPUTS))
    np.testing.assert_array_equal(one.embed.weight, other.embed.weight)
    low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    assert model.apply(low, tokens).value.dtype == jnp.bfloat16


def test_a_tied_model_reads_out_with_its_embedding():
    tokens = jnp.asarray(np.random.default_rng(1).integers(OUTPUTS, size=(3, LENGTH)), jnp.int32)
    spec = Spec(LENGTH, OUTPUTS, OUTPUTS, answers=LENGTH)
    model = Transformer(width=8, heads=2, norm="pre", mask="causal", tied=True)
    params = model.init(jax.random.key(0), spec)
    assert params.readout is None
    value = model.apply(params, tokens, Tap(spec)).value
    separate = params._replace(readout=Linear(params.embed.weight.T, jnp.zeros(OUTPUTS)))
    np.testing.assert_array_equal(value, model.apply(separate, tokens, Tap(spec)).value)
    output = model.apply(params, tokens, Tap(spec._replace(deferred=True)))
    assert output.readout is not None
    assert output.features is not None
    close(output.readout(output.features), value)
    with pytest.raises(InputError, match="as many inputs as outputs, and the task has 4 inputs"):
        model.init(jax.random.key(0), SPEC)


def test_dropout_zeroes_the_embedding_and_what_layers_add():
    """With a key only. The rest is scaled, so that means stay the same."""
    width = 64
    model = Transformer(layers=1, heads=1, width=width, positions="none", dropout=0.25)
    start = model.init(jax.random.key(0), Spec(LENGTH, INPUTS, width))
    ones = jax.tree.map(jnp.zeros_like, start)
    ones = ones._replace(
        embed=ones.embed._replace(bias=jnp.ones(width)),
        readout=ones.readout._replace(weight=jnp.eye(width)),
    )
    # The stream is 1 everywhere; the attention adds 8 to it, and the MLP 64.
    layer = ones.layers[0]
    layer = layer._replace(out=layer.out._replace(bias=jnp.full(width, 8.0)))
    layer = layer._replace(down=layer.down._replace(bias=jnp.full(width, 64.0)))
    ones = ones._replace(layers=(layer,))
    inputs = jnp.zeros((50, LENGTH, INPUTS))

    @jax.jit
    def value_with(key: Any) -> Any:
        return model.apply(ones, inputs, Tap(key=key)).value

    def value(seed: int | None = None) -> Any:
        return np.asarray(value_with(None if seed is None else jax.random.key(seed)))

    assert np.all(value() == 73)
    sums = np.round(0.75 * value(0))
    parts = [sums % 8, sums % 64 - sums % 8, sums - sums % 64]
    for part, size in zip(parts, (1, 8, 64), strict=True):
        kept = part / size
        assert set(np.unique(kept)) == {0, 1}
        # 3,200 numbers: four standard errors.
        assert kept.mean() == pytest.approx(0.75, abs=4 * math.sqrt(0.25 * 0.75 / 3200))
    np.testing.assert_array_equal(value(0), value(0))
    assert np.any(value(1) != value(0))


def test_a_stack_of_runs_drops_what_each_run_drops():
    keys = jnp.stack([raw(jax.random.key(seed)) for seed in range(2)])
    together = jax.vmap(lambda key: dropped(key, (3, 5), 0.5))(keys)
    np.testing.assert_array_equal(together[1], dropped(keys[1], (3, 5), 0.5))


def test_several_positions_can_be_read():
    """Causal attention: the value at a position equals the value of the sequence up to it."""
    model, params, inputs = made({"mask": "causal"})
    values = model.apply(params, inputs, Tap(SPEC._replace(answers=3))).value
    assert values.shape == (2, 3, OUTPUTS)
    for i in range(3):
        close(values[:, i], model.apply(params, inputs[:, : LENGTH - 2 + i]).value)


def by_hand(model, params, inputs):
    """Return the value at the last position: one sequence, head and position at a time, in float64,
    with rotations as complex numbers."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    size = model.width // model.heads
    values = []
    turn = np.exp(1j * np.arange(LENGTH)[:, None] / 10_000 ** (np.arange(0, size, 2) / size))
    for x in np.asarray(inputs, np.float64) @ p.embed.weight + p.embed.bias:
        if model.positions == "sinusoidal":
            angle = np.arange(LENGTH)[:, None] / 10_000 ** (
                np.arange(0, model.width, 2) / model.width
            )
            x = x + np.stack([np.sin(angle), np.cos(angle)], -1).reshape(x.shape)
        for layer in p.layers:
            q, k, v = (x @ map.weight + map.bias for map in (layer.query, layer.key, layer.value))
            mixed = np.zeros_like(x)
            for h, i in np.ndindex(model.heads, LENGTH):
                part = slice(h * size, (h + 1) * size)
                seen = i + 1 if model.mask == "causal" else LENGTH
                qs = q[i, part]
                ks = k[:seen, part]
                if model.positions == "rope":
                    qs = (qs[::2] + 1j * qs[1::2]) * turn[i]
                    ks = (ks[:, ::2] + 1j * ks[:, 1::2]) * turn[:seen]
                scores = (ks @ np.conj(qs)).real / np.sqrt(size)
                if layer.temperature is not None:
                    scores = scores / np.exp(layer.temperature[h])
                weights = np.exp(scores) / np.exp(scores).sum()
                if model.attention == "sigmoid":
                    weights = 1 / (1 + np.exp(-(scores - np.log(seen))))
                mixed[i, part] = weights @ v[:seen, part]
            x = x + mixed @ layer.out.weight + layer.out.bias
            x = (
                x
                + np.maximum(x @ layer.up.weight + layer.up.bias, 0) @ layer.down.weight
                + layer.down.bias
            )
        values.append(x[-1] @ p.readout.weight + p.readout.bias)
    return np.stack(values)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize(
    "options",
    [{}, {"positions": "rope"}, {"attention": "sigmoid"}, {"temperature": "learned"}],
    ids=str,
)
def test_apply_equals_a_forward_pass_in_numpy(options, mask, layers):
    model, params, inputs = made(options | {"mask": mask, "layers": layers})
    close(model.apply(params, inputs).value, by_hand(model, params, inputs), 5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
def test_pytorch_agrees(layers):
    """An independent implementation has the same outputs and gradients."""
    torch = pytest.importorskip("torch")
    from benchmarks.peer import torch_model

    model, params, inputs = made({"layers": layers})
    peer = torch_model(layers, 2, LENGTH, INPUTS - 1, width=8, factor=4)
    peer.readout = torch.nn.Linear(8, OUTPUTS)

    def flat(tree):
        """Rename arrays as PyTorch does. Weights are transposed, and the mark is the last input."""
        parts = {
            "embed": (np.roll(tree.embed.weight, -1, 0), tree.embed.bias),
            "readout": tree.readout,
        }
        for i, layer in enumerate(tree.layers):
            parts |= {
                f"blocks.{i}.{name}": getattr(layer, name)
                for name in ("query", "key", "value", "out", "up", "down")
            }
        named = {f"{name}.weight": np.asarray(weight).T for name, (weight, _) in parts.items()}
        return named | {f"{name}.bias": np.asarray(bias) for name, (_, bias) in parts.items()}

    with torch.no_grad():
        named = dict(peer.named_parameters())
        ours = flat(params)
        assert set(ours) == set(named)
        for name, value in ours.items():
            named[name].copy_(torch.tensor(value))
    output = peer(torch.tensor(np.roll(inputs, -1, -1)))
    (0.5 * (output**2).sum()).backward()
    value = model.apply(params, inputs).value
    gradient = jax.grad(lambda p: 0.5 * jnp.sum(model.apply(p, inputs).value ** 2))(params)
    close(value, output.detach().numpy())
    close(
        dict(sorted(flat(gradient).items())),
        {name: named[name].grad.numpy() for name in sorted(named)},
    )


# Tests of the initialisation use one size. Its smallest map has enough numbers for the largest to
# come near the bound.
WIDTH = 16


def start(initial: Any = "pytorch", seed=0, **options):
    model = Transformer(layers=2, heads=2, width=WIDTH, mlp_factor=2, initial=initial, **options)
    return model.init(jax.random.key(seed), Spec(LENGTH, 5, 4, marks=1))


def maps(params) -> Iterator[tuple[Any, int]]:
    """Yield all linear maps, each with its number of inputs in PyTorch."""
    yield params.readout, WIDTH
    for layer in params.layers:
        for map in (layer.query, layer.key, layer.value, layer.out, layer.up):
            yield map, WIDTH
        yield layer.down, 2 * WIDTH


def test_the_start_of_pytorch():
    """Numbers are uniform in ±1/√inputs. The largest of 64 misses 90% of the bound once in 800."""
    params = start()
    cases = [(*params.embed, 5), *((m.weight, m.bias, inputs) for m, inputs in maps(params))]
    everything = []
    for weight, bias, inputs in cases:
        bound = 1 / math.sqrt(inputs)
        for values in (np.asarray(weight), np.asarray(bias)):
            assert np.abs(values).max() <= bound
            everything.append(values.ravel() / bound)
        assert np.abs(weight).max() > 0.9 * bound
    everything = np.concatenate(everything)
    # About 6,000 numbers of variance 1/3: four standard errors. No number is drawn twice.
    assert abs(everything.mean()) < 4 / math.sqrt(3 * everything.size)
    assert everything.var() == pytest.approx(1 / 3, rel=0.05)
    weights = np.concatenate([np.asarray(w).ravel() for w, *_ in cases[2:]])
    assert len(np.unique(weights)) > 0.999 * weights.size


@pytest.mark.parametrize("initial", ["xavier", "normal"])
def test_other_starts(initial):
    """Xavier's bound is √(6/(inputs + outputs)), the normal's spread is 0.02, biases are 0."""
    params = start(initial)
    for map, inputs in maps(params):
        weight = np.asarray(map.weight)
        assert weight.shape[0] == inputs
        assert not np.any(map.bias)
        if initial == "xavier":
            bound = math.sqrt(6 / sum(weight.shape))
            assert 0.9 * bound < np.abs(weight).max() <= bound
        elif weight.size >= 256:
            # Three standard errors of the spread of 256 numbers are 13%.
            assert weight.std() == pytest.approx(0.02, rel=0.15)
    assert not np.any(params.embed.bias)


@pytest.mark.parametrize("initial", ["pytorch", "xavier", "normal"])
def test_marks_do_not_change_the_rows_of_the_content(initial):
    """Except for the scale, if it depends on the number of inputs."""
    model = Transformer(heads=2, width=8, initial=initial)
    with_mark, without = (
        model.init(jax.random.key(0), Spec(LENGTH, 3 + marks, 2, marks=marks)).embed.weight
        for marks in (1, 0)
    )
    ratio = {"pytorch": math.sqrt(3 / 4), "xavier": math.sqrt(11 / 12), "normal": 1.0}[initial]
    np.testing.assert_allclose(with_mark[1:], ratio * without, rtol=1e-5)


def test_logits_and_temperatures_start_at_zero_and_norms_at_one():
    params = start(attention="biased", norm="pre", temperature="learned")
    for layer in params.layers:
        assert layer.bias is not None
        assert layer.norms is not None
        assert not np.any(layer.bias)
        assert layer.temperature is not None
        assert not np.any(layer.temperature)
        for norm in layer.norms:
            assert isinstance(norm, LayerNorm)
            assert np.all(norm.gain == 1)
            assert not np.any(norm.offset)
    assert params.norm is not None


def test_the_value_path_is_the_product_of_its_maps():
    model, params, _ = made({"layers": 3})
    expected = np.zeros((INPUTS, OUTPUTS))
    for layer in params.layers:
        product = np.asarray(params.embed.weight, np.float64)
        for part in (layer.value.weight, layer.out.weight, params.readout.weight):
            product = product @ np.asarray(part, np.float64)
        expected += product
    close(model.value_path(params), expected)


def test_the_value_path_maps_a_single_token_to_the_output():
    """In a layer without MLP and skip connection, at length 1."""
    model, params, _ = made({"layers": 1, "mlp": False, "skip": False})
    inputs = jnp.asarray(np.random.default_rng(5).standard_normal((2, 1, INPUTS)), jnp.float32)
    output = model.apply(params, inputs)
    assert output.value_path is not None
    moved = output.value[0] - output.value[1]
    expected = (inputs[0, 0] - inputs[1, 0]) @ output.value_path
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"heads": 3}, "Transformer.heads must divide width, got 3 heads with width 256"),
        ({"width": 5, "heads": 1}, "positions: sinusoids need an even width, got 5"),
        ({"width": 6, "heads": 2, "positions": "rope"}, "rope needs heads of an even size"),
        ({"dropout": 1.0}, "Transformer.dropout must be below 1, got 1.0"),
    ],
)
def test_wrong_options_are_named(values, message):
    with pytest.raises(InputError, match=message):
        Transformer(**values)
