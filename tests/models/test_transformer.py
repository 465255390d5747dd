"""The Transformer: its two forwards agree, and so do NumPy and PyTorch."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo._contract import Spec, Tap
from emergo._errors import InputError
from emergo.models import Transformer, _transformer
from emergo.models._products import Linear
from emergo.models._transformer import Initial

LENGTH, INPUTS, OUTPUTS = 7, 4, 2  # the first input is a mark
SPEC = Spec(LENGTH, INPUTS, OUTPUTS, marks=1)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"layers": 1},
    {"layers": 3},
    {"norm": "pre"},
    {"norm": "pre", "layers": 1},
    {"norm": "post"},
    {"norm": "post", "layers": 1},
    {"mask": "causal"},
    {"mask": "causal", "layers": 1},
    {"activation": "gelu"},
    {"positions": "learned"},
    {"positions": "none"},
    {"skip": False},
    {"mlp": False},
    {"mlp": False, "skip": False, "layers": 1},
    {"heads": 1, "width": 6},
    {"width": 2, "heads": 2},  # narrower than the tokens: the first layer does not compose
    {"width": 4, "heads": 2, "positions": "rope", "layers": 1},
    {"temperature": "learned", "layers": 1},
    {"temperature": "learned", "mask": "causal"},
    {"positions": "rope", "norm": "pre", "mask": "causal"},
    {"positions": "rope", "attention": "sigmoid", "temperature": "learned"},
    {"positions": "rope", "attention": "biased", "temperature": "learned", "layers": 1},
    {"positions": "rope", "attention": "positional", "temperature": "learned"},
    {"positions": "rope", "layers": 1},
    {"window": 3},
    {"window": 3, "mask": "causal", "layers": 3},
    {"window": 3, "attention": "linear", "layers": 1},
    {"top_k": 2},
    {"top_k": 2, "attention": "biased", "layers": 1},
    {"top_k": 2, "window": 4, "mask": "causal", "positions": "rope"},
    *(
        {"attention": attention} | mask
        for attention in ("linear", "sigmoid", "biased", "positional")
        for mask in ({"mask": "none", "layers": 1}, {"mask": "causal", "layers": 2})
    ),
]


def made(options, seed=0):
    """A model and data. Parameters are drawn away from the start, whose symmetries could hide a mistake."""
    model = Transformer(**({"width": 8, "heads": 2} | options))
    structure = jax.eval_shape(lambda: model.init(jax.random.key(0), SPEC))
    rng = np.random.default_rng(seed)

    def drawn(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    params = jax.tree.map(lambda x: 0.4 * drawn(*x.shape), structure)
    marks = jnp.asarray(np.arange(LENGTH) == np.array([[2], [LENGTH - 1]]), jnp.float32)
    return model, params, jnp.concatenate([marks[..., None], drawn(2, LENGTH, INPUTS - 1)], -1)


@pytest.fixture(autouse=True, scope="module")
def exact():
    """One precision for all, so that nothing is compiled twice."""
    with jax.default_matmul_precision("highest"):
        yield


def graded(forward, params):
    """The output, and the gradient of a loss.

    Not compiled as a whole: single operations are compiled once for all models of one size, which is most of the time here.
    """

    def loss(params):
        output = forward(params)
        return 0.5 * jnp.sum(output.value**2), output

    wrapped = jax.value_and_grad(loss, has_aux=True)
    (_, output), gradient = (wrapped if params.readout.weight.shape == (8, OUTPUTS) else jax.jit(wrapped))(params)
    return output, gradient


def by_plain(model, params, inputs):
    return graded(lambda p: model.apply(p, inputs), params)


def by_fast(model, params, inputs, fused=False):
    return graded(lambda p: model.fast(p, inputs, Tap(fused=int(fused))), params)


def close(ours, theirs, tolerance=1e-5):
    """Entries relative to themselves or to the largest of all: sums of numbers of that size cancel."""
    ours, theirs = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    largest = max(float(np.abs(x).max()) for x in theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest)


def agree(ours, theirs):
    for name in ("value", "attention", "value_path"):
        close(getattr(ours[0], name), getattr(theirs[0], name))
    close(ours[1], theirs[1])


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fast_equals_plain_in_values_and_gradients(options):
    """Also the attention of the last position, which both report."""
    case = made(options)
    agree(by_fast(*case), by_plain(*case))


def test_the_last_query_goes_through_the_mlp_below():
    """Whose gradients are written by hand there, from few vectors; in other models above, which take longer."""
    case = made({"layers": 3, "mask": "causal"})
    assert case[0]._mlp_below(case[1]) is not None
    agree(by_fast(*case), by_plain(*case))


def test_no_other_mlp_is_part_of_the_last_query():
    others = [{"layers": 1}, {"mlp": False}, {"skip": False}, {"activation": "gelu"}, {"norm": "pre"}, {"positions": "rope"}]
    for model, params, _ in map(made, others):
        assert model._mlp_below(params) is None


FUSED = [
    {},
    {"positions": "learned"},
    {"positions": "rope"},  # whose keys do not share their bias
    {"positions": "rope", "layers": 3, "temperature": "learned"},
    {"temperature": "learned"},
    {"attention": "sigmoid"},  # whose weights do not sum to 1
    {"norm": "post"},
    {"norm": "pre", "mask": "causal", "layers": 3},
    {"mask": "causal", "attention": "biased"},
    {"attention": "linear"},
]


@pytest.mark.parametrize("options", FUSED, ids=str)
def test_what_is_written_for_a_gpu_is_the_same(options):
    """In fp32 `fused` changes where biases are added and how the gradients of the first layer are computed, and no more."""
    case = made(options)
    agree(by_fast(*case, fused=True), by_plain(*case))


FOLDED = [
    {},
    {"layers": 3, "mask": "causal"},
    {"norm": "post", "positions": "learned"},
    {"skip": False, "positions": "none"},
    {"mlp": False, "temperature": "learned"},
    {"attention": "biased", "window": 3},
    {"attention": "linear", "mask": "causal"},  # whose weights do not sum to 1
    {"attention": "sigmoid", "activation": "gelu"},
    {"top_k": 2, "window": 4, "mask": "causal"},
]


@pytest.mark.parametrize("options", FOLDED, ids=str)
def test_folded_maps_are_the_same(options, monkeypatch):
    """The first layer's attention on a CPU, which these models are too narrow for."""
    case = made(options, seed=2)  # three layers of seed 0 amplify rounding, of the other two forwards as well
    monkeypatch.setattr(_transformer, "folds", lambda *_: True)
    monkeypatch.setattr(_transformer, "attend_all", None if case[0].layers == 2 else _transformer.attend_all)
    agree(by_fast(*case), by_plain(*case))


def test_where_maps_are_folded(monkeypatch):
    """Where it is no more arithmetic, and the stream is what scores are of."""
    monkeypatch.setattr(_transformer, "folded", None)
    sizes = {"width": 32, "heads": 2}
    with pytest.raises(TypeError):
        by_fast(*made(sizes))
    others = [{"width": 8}, {"heads": 16}, {"layers": 1}, {"norm": "pre"}, {"positions": "rope"}, {"attention": "positional"}]
    for model, params, inputs in (made(sizes | other) for other in others):
        jax.eval_shape(model.fast, params, inputs)
    model, params, inputs = made(sizes)
    short = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    jax.eval_shape(model.fast, short, inputs.astype(jnp.bfloat16))
    jax.eval_shape(lambda params: model.fast(params, inputs, Tap(fused=True)), params)


@pytest.mark.parametrize("forward", ["apply", "fast"])
def test_tokens_are_one_hot_inputs(forward):
    model, params, _ = made({})
    tokens = jnp.asarray(np.random.default_rng(1).integers(INPUTS, size=(3, LENGTH)), jnp.int32)
    by_token, by_row = (getattr(model, forward)(params, x) for x in (tokens, jax.nn.one_hot(tokens, INPUTS)))
    np.testing.assert_array_equal(by_token.value, by_row.value)
    low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    assert getattr(model, forward)(low, tokens).value.dtype == jnp.bfloat16


def test_several_positions_can_be_read():
    """At each one the value is that of the sequence up to it, where attention is causal; and `fast` gives the same."""
    model, params, inputs = made({"mask": "causal"})
    tap = Tap(SPEC._replace(answers=3))
    values = model.apply(params, inputs, tap).value
    assert values.shape == (2, 3, OUTPUTS)
    for i in range(3):
        close(values[:, i], model.apply(params, inputs[:, : LENGTH - 2 + i]).value)
    np.testing.assert_array_equal(model.fast(params, inputs, tap).value, values)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("positions", ["sinusoidal", "rope"])
def test_bf16_is_near_fp32(layers, positions):
    """Eight bits of a number: 0.4% an operation, a few of them in a row, and nothing that cancels at these sizes."""
    model, params, inputs = made({"layers": layers, "positions": positions})
    low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (params, inputs))
    both = jax.jit(lambda *given: (model.fast(*given), model.apply(*given)))
    exact = both(params, inputs)[0]
    for output in both(*low):
        assert output.value.dtype == jnp.bfloat16
        assert output.attention.dtype == output.value_path.dtype == jnp.float32
        close(output.value.astype(jnp.float32), exact.value, 2e-2)
        close(output.attention, exact.attention, 2e-2)


def by_hand(model, params, inputs):
    """One sequence, one head, one position at a time, in float64 and with complex rotations; the value at the last position."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    size, values = model.width // model.heads, []
    turn = np.exp(1j * np.arange(LENGTH)[:, None] / 10_000 ** (np.arange(0, size, 2) / size))
    for x in np.asarray(inputs, np.float64) @ p.embed.weight + p.embed.bias:
        if model.positions == "sinusoidal":
            angle = np.arange(LENGTH)[:, None] / 10_000 ** (np.arange(0, model.width, 2) / model.width)
            x = x + np.stack([np.sin(angle), np.cos(angle)], -1).reshape(x.shape)
        for layer in p.layers:
            q, k, v = (x @ map.weight + map.bias for map in (layer.query, layer.key, layer.value))
            mixed = np.zeros_like(x)
            for h, i in np.ndindex(model.heads, LENGTH):
                part, seen = slice(h * size, (h + 1) * size), i + 1 if model.mask == "causal" else LENGTH
                qs, ks = q[i, part], k[:seen, part]
                if model.positions == "rope":
                    qs, ks = (qs[::2] + 1j * qs[1::2]) * turn[i], (ks[:, ::2] + 1j * ks[:, 1::2]) * turn[:seen]
                scores = (ks @ np.conj(qs)).real / np.sqrt(size)
                if layer.temperature is not None:
                    scores = scores / np.exp(layer.temperature[h])
                weights = np.exp(scores) / np.exp(scores).sum()
                if model.attention == "sigmoid":
                    weights = 1 / (1 + np.exp(-(scores - np.log(seen))))
                mixed[i, part] = weights @ v[:seen, part]
            x = x + mixed @ layer.out.weight + layer.out.bias
            x = x + np.maximum(x @ layer.up.weight + layer.up.bias, 0) @ layer.down.weight + layer.down.bias
        values.append(x[-1] @ p.readout.weight + p.readout.bias)
    return np.stack(values)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("options", [{}, {"positions": "rope"}, {"attention": "sigmoid"}, {"temperature": "learned"}], ids=str)
def test_both_forwards_are_the_one_by_hand(options, mask, layers):
    model, params, inputs = made(options | {"mask": mask, "layers": layers})
    expected = by_hand(model, params, inputs)
    for forward in (model.apply, model.fast):
        close(forward(params, inputs).value, expected, 5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
def test_pytorch_agrees(layers):
    """A model written apart, in another library: outputs and gradients by all parameters."""
    torch = pytest.importorskip("torch")
    from emergo.bench._peer import torch_model

    model, params, inputs = made({"layers": layers})
    peer = torch_model(layers, 2, LENGTH, INPUTS - 1, width=8, factor=4)
    peer.readout = torch.nn.Linear(8, OUTPUTS)

    def flat(tree):
        """Our numbers under PyTorch's names: weights transposed, the mark as the last input of the embedding."""
        parts = {"embed": (np.roll(tree.embed.weight, -1, 0), tree.embed.bias), "readout": tree.readout}
        for i, layer in enumerate(tree.layers):
            parts |= {f"blocks.{i}.{name}": getattr(layer, name) for name in ("query", "key", "value", "out", "up", "down")}
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
    for f in (by_plain, by_fast):
        ours, gradient = f(model, params, inputs)
        close(ours.value, output.detach().numpy())
        # Name by name, in one order.
        close(dict(sorted(flat(gradient).items())), {name: named[name].grad.numpy() for name in sorted(named)})


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("attention", ["softmax", "biased", "positional", "linear", "sigmoid"])
def test_attention_rows(attention, mask):
    """Competing weights are a distribution over what is visible; others need not be, but see no more."""
    model, params, inputs = made({"attention": attention, "mask": mask})
    tap = Tap(reads=["layers.*.pattern"])
    last = model.apply(params, inputs, tap).attention
    assert last is not None
    for i in range(2):
        weights = np.asarray(tap.taken[f"layers.{i}.pattern"])
        assert weights.shape == (2, 2, LENGTH, LENGTH)
        np.testing.assert_array_equal(last[:, i], weights[:, :, -1])
        if attention not in ("linear", "sigmoid"):
            np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
        assert attention == "linear" or (weights >= 0).all()
        later = np.triu(np.ones((LENGTH, LENGTH), bool), 1)
        assert (weights[..., later] == 0).all() == (mask == "causal")


def test_a_causal_model_does_not_see_what_comes_later():
    model, params, inputs = made({"mask": "causal"})
    tap = Tap(SPEC._replace(answers=LENGTH))
    one, two = (np.asarray(model.apply(params, x, tap).value) for x in (inputs, inputs.at[:, -1].add(1.0)))
    np.testing.assert_allclose(one[:, :-1], two[:, :-1], rtol=1e-5, atol=1e-6)
    assert np.abs(one[:, -1] - two[:, -1]).max() > 1e-3


def test_rotations_see_distances_alone():
    """Without a mask and other positions, shifting the context around changes what a query reads only through distances."""
    model, params, inputs = made({"positions": "rope", "mask": "causal"})
    shifted = jnp.concatenate([inputs[:, :1], inputs], 1)
    tap = Tap(reads=["layers.0.scores"])
    model.apply(params, inputs, tap)
    scores = np.asarray(tap.taken["layers.0.scores"])
    model.apply(params, shifted, tap)
    np.testing.assert_allclose(np.asarray(tap.taken["layers.0.scores"])[..., 1:, 1:], scores, rtol=1e-4, atol=1e-5)


# The start. One size for all, with enough numbers in the smallest map for its largest to come near the bound.
WIDTH = 16


def start(initial: Initial = "pytorch", seed=0, **options):
    model = Transformer(layers=2, heads=2, width=WIDTH, mlp_factor=2, initial=initial, **options)
    return model.init(jax.random.key(seed), Spec(LENGTH, 5, 4, marks=1))


def maps(params) -> Iterator[tuple[Linear, int]]:
    """All linear maps with the number of inputs that each has in PyTorch."""
    yield params.readout, WIDTH
    for layer in params.layers:
        for map in (layer.query, layer.key, layer.value, layer.out, layer.up):
            yield map, WIDTH
        yield layer.down, 2 * WIDTH


def test_the_start_of_pytorch():
    """Uniform in ±1/√inputs: no number outside, and the largest of at least 64 within 10% of the bound (missed once in 800)."""
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
    # About 6,000 numbers of variance 1/3: four standard errors, and no number is dealt twice.
    assert abs(everything.mean()) < 4 / math.sqrt(3 * everything.size)
    assert everything.var() == pytest.approx(1 / 3, rel=0.05)
    weights = np.concatenate([np.asarray(w).ravel() for w, *_ in cases[2:]])
    assert len(np.unique(weights)) > 0.999 * weights.size


@pytest.mark.parametrize("initial", ["xavier", "normal"])
def test_other_starts(initial):
    """Xavier's bound is √(6/(inputs + outputs)); a normal has its spread of 0.02. No biases."""
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
def test_marks_are_rows_in_front_of_the_same_content(initial):
    """The content starts as without marks, where the scale does not depend on how many inputs there are."""
    model = Transformer(heads=2, width=8, initial=initial)
    with_mark, without = (
        model.init(jax.random.key(0), Spec(LENGTH, 3 + marks, 2, marks=marks)).embed.weight for marks in (1, 0)
    )
    ratio = {"pytorch": math.sqrt(3 / 4), "xavier": math.sqrt(11 / 12), "normal": 1.0}[initial]
    np.testing.assert_allclose(with_mark[1:], ratio * without, rtol=1e-5)


def test_keys_give_other_starts():
    one, two = (np.asarray(start(seed=seed).layers[0].query.weight) for seed in range(2))
    assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 4 / math.sqrt(one.size)


def test_logits_and_temperatures_start_at_zero_and_norms_at_one():
    params = start(attention="biased", norm="pre", temperature="learned")
    for layer in params.layers:
        assert layer.bias is not None
        assert layer.norms is not None
        assert not np.any(layer.bias)
        assert layer.temperature is not None
        assert not np.any(layer.temperature)
        assert all(np.all(s.gain == 1) and not np.any(s.offset) for s in layer.norms)
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


def test_the_value_path_is_what_a_lone_token_adds():
    """One layer that is only attention, of a single token: the output moves with it by the value path."""
    model, params, _ = made({"layers": 1, "mlp": False, "skip": False})
    inputs = jnp.asarray(np.random.default_rng(5).standard_normal((2, 1, INPUTS)), jnp.float32)
    output = model.fast(params, inputs)
    assert output.value_path is not None
    moved, expected = output.value[0] - output.value[1], (inputs[0, 0] - inputs[1, 0]) @ output.value_path
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-5)


def test_inputs_of_another_size_are_named():
    model, params, inputs = made({})
    for f in (model.apply, model.fast):
        with pytest.raises(InputError, match="the parameters are for tokens of 4 features"):
            f(params, inputs[..., :3])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": 0}, "Transformer.layers must be a whole number of at least 1, got 0"),
        ({"heads": True}, "Transformer.heads must be a whole number of at least 1, got True"),
        ({"width": -4}, "Transformer.width must be a whole number"),
        ({"mlp_factor": 1.5}, "Transformer.mlp_factor must be a whole number of at least 1, got 1.5"),
        ({"heads": 3}, "Transformer.heads must divide width, got 3 heads with width 256"),
        ({"width": 5, "heads": 1}, "positions: sinusoids need an even width, got 5"),
        ({"width": 6, "heads": 2, "positions": "rope"}, "rope needs heads of an even size, got 3"),
        ({"temperature": "learnt"}, "unknown Transformer.temperature 'learnt'; did you mean learned"),
        ({"norm": "prae"}, "unknown Transformer.norm 'prae'; did you mean pre"),
        ({"mask": "casual"}, "unknown Transformer.mask 'casual'; did you mean causal"),
        ({"activation": "tanh"}, "unknown Transformer.activation 'tanh'; known: relu, gelu"),
        ({"attention": "sofmax"}, "unknown Transformer.attention 'sofmax'; did you mean softmax"),
        ({"initial": "torch"}, "unknown Transformer.initial 'torch'; did you mean pytorch"),
        ({"positions": "rotary"}, "unknown Transformer.positions 'rotary'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_options_are_named(values, message):
    with pytest.raises(InputError, match=message):
        Transformer(**values)
