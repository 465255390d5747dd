"""The Transformer: its two forwards agree, and PyTorch agrees with them."""

import itertools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo._errors import InputError
from emergo.models import Transformer
from emergo.models._transformer import Initial, Linear

LENGTH, FEATURES, OUTPUTS = 7, 3, 2
OPTIONS = [
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
    {"initial": "xavier"},
    {"initial": "normal"},
    {"heads": 1, "width": 6},
    {"width": 2, "heads": 2},  # narrower than the tokens: the first layer does not compose
    *(
        {"attention": a, "mask": m, "layers": n}
        for a, m, n in itertools.product(("linear", "biased", "positional"), ("none", "causal"), (1, 2))
    ),
]


def made(options, marks=True, seed=0):
    """A model and data. Parameters are drawn away from the start, whose symmetries could hide a mistake."""
    model = Transformer(**({"width": 8, "heads": 2} | options))
    structure = jax.eval_shape(lambda: model.init(jax.random.key(0), LENGTH, FEATURES, OUTPUTS, marks))
    rng = np.random.default_rng(seed)

    def drawn(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    parameters = jax.tree.map(lambda x: 0.4 * drawn(*x.shape), structure)
    marked = jnp.asarray(np.arange(LENGTH) == np.array([[2], [LENGTH - 1]]), jnp.float32)
    return model, parameters, drawn(2, LENGTH, FEATURES), marked if marks else None


@pytest.fixture(autouse=True, scope="module")
def exact():
    """One precision for all, so that nothing is compiled twice."""
    with jax.default_matmul_precision("highest"):
        yield


def graded(f, parameters):
    """What was seen, and the gradient of a loss.

    Not compiled as a whole: single operations are compiled once for all models of one size, which is most of the time here.
    """

    def loss(parameters):
        output, attention = f(parameters)
        return 0.5 * jnp.sum(output**2), (output, attention)

    wrapped = jax.value_and_grad(loss, has_aux=True)
    (_, seen), gradient = (wrapped if parameters.readout.weight.shape == (8, OUTPUTS) else jax.jit(wrapped))(parameters)
    return *seen, gradient


def by_plain(model, parameters, tokens, marks):
    def f(parameters):
        seen = model.forward(parameters, tokens, marks)
        return seen.outputs[:, -1], seen.attention[:, :, :, -1]

    return graded(f, parameters)


def by_folded(model, parameters, tokens, marks, fused=False):
    return graded(lambda p: tuple(model.watch(p, tokens, marks, fused)), parameters)


def close(ours, theirs, tolerance=1e-5):
    """Entries relative to themselves or to the largest of all: sums of numbers of that size cancel."""
    ours, theirs = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    largest = max(float(np.abs(x).max()) for x in theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_folded_equals_plain_in_values_and_gradients(options):
    """Also the attention of the last position, which both report."""
    case = made(options)
    for plain, folded in zip(by_plain(*case), by_folded(*case), strict=True):
        close(folded, plain)


FUSED = [
    {},
    {"positions": "learned"},
    {"norm": "post"},
    {"norm": "pre", "mask": "causal", "layers": 3},
    {"mask": "causal", "attention": "biased"},
    {"attention": "linear"},
]


@pytest.mark.parametrize("options", FUSED, ids=str)
def test_what_is_written_for_a_gpu_is_the_same(options):
    """In fp32 `fused` changes where biases are added and how the gradients of the first layer are computed, and no more."""
    case = made(options)
    for plain, folded in zip(by_plain(*case), by_folded(*case, fused=True), strict=True):
        close(folded, plain)


@pytest.mark.parametrize("layers", [1, 2])
def test_tokens_without_marks(layers):
    case = made({"layers": layers}, marks=False)
    for plain, folded in zip(by_plain(*case), by_folded(*case), strict=True):
        close(folded, plain)


def test_the_answer_is_what_is_watched():
    model, parameters, tokens, marks = made({})
    np.testing.assert_array_equal(model.answer(parameters, tokens, marks), model.watch(parameters, tokens, marks).output)


@pytest.mark.parametrize("layers", [1, 2])
def test_bf16_is_near_fp32(layers):
    """Eight bits of a number: 0.4% an operation, a few of them in a row, and nothing that cancels at these sizes."""
    model, parameters, tokens, marks = made({"layers": layers, "initial": "pytorch"})
    low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (parameters, tokens, marks))
    both = jax.jit(lambda *given: (model.watch(*given), model.forward(*given).outputs[:, -1]))
    (ours, plain), (exact, _) = both(*low), both(parameters, tokens, marks)
    assert ours.output.dtype == jnp.bfloat16
    assert ours.attention.dtype == jnp.float32
    close(ours.output.astype(jnp.float32), exact.output, 2e-2)
    close(ours.attention, exact.attention, 2e-2)
    assert plain.dtype == jnp.bfloat16
    close(plain.astype(jnp.float32), exact.output, 2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
def test_pytorch_agrees(layers):
    """A model written apart, in another library: outputs and gradients by all parameters."""
    torch = pytest.importorskip("torch")
    from emergo.bench._peer import torch_model

    model, parameters, tokens, marks = made({"layers": layers})
    peer = torch_model(layers, 2, LENGTH, FEATURES, width=8, factor=4)
    peer.readout = torch.nn.Linear(8, OUTPUTS)

    def flat(tree):
        """Our numbers under PyTorch's names: weights transposed, the mark as the last input of the embedding."""
        parts = {"embed": (np.concatenate([tree.embed.weight, tree.mark[None]]), tree.embed.bias), "readout": tree.readout}
        for i, layer in enumerate(tree.layers):
            parts |= {f"blocks.{i}.{name}": getattr(layer, name) for name in ("query", "key", "value", "out", "up", "down")}
        named = {f"{name}.weight": np.asarray(weight).T for name, (weight, _) in parts.items()}
        return named | {f"{name}.bias": np.asarray(bias) for name, (_, bias) in parts.items()}

    with torch.no_grad():
        named = dict(peer.named_parameters())
        ours = flat(parameters)
        assert set(ours) == set(named)
        for name, value in ours.items():
            named[name].copy_(torch.tensor(value))
    inputs = np.concatenate([tokens, np.asarray(marks)[..., None]], -1)
    output = peer(torch.tensor(inputs))
    (0.5 * (output**2).sum()).backward()
    for f in (by_plain, by_folded):
        found, _, gradient = f(model, parameters, tokens, marks)
        close(found, output.detach().numpy())
        # Name by name, in one order.
        close(dict(sorted(flat(gradient).items())), {name: named[name].grad.numpy() for name in sorted(named)})


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("attention", ["softmax", "biased", "positional", "linear"])
def test_attention_rows(attention, mask):
    """Competing weights are a distribution over what is visible; linear ones need not be, but see no more."""
    model, parameters, tokens, marks = made({"attention": attention, "mask": mask})
    weights = np.asarray(model.forward(parameters, tokens, marks).attention)
    assert weights.shape == (2, 2, 2, LENGTH, LENGTH)
    if attention != "linear":
        assert (weights >= 0).all()
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    later = np.triu(np.ones((LENGTH, LENGTH), bool), 1)
    assert (weights[..., later] == 0).all() == (mask == "causal")


def test_a_causal_model_does_not_see_what_comes_later():
    model, parameters, tokens, marks = made({"mask": "causal"})
    other = tokens.at[:, -1].add(1.0)
    one, two = (np.asarray(model.forward(parameters, x, marks).outputs) for x in (tokens, other))
    np.testing.assert_allclose(one[:, :-1], two[:, :-1], rtol=1e-5, atol=1e-6)
    assert np.abs(one[:, -1] - two[:, -1]).max() > 1e-3


def test_sinusoidal_positions():
    """Vaswani et al. 2017, Section 3.5, by its formula."""
    model, parameters, *_ = made({})
    angle = np.arange(LENGTH)[:, None] / 10_000 ** (np.arange(0, 8, 2) / 8)
    expected = np.zeros((LENGTH, 8))
    expected[:, ::2], expected[:, 1::2] = np.sin(angle), np.cos(angle)
    np.testing.assert_allclose(model._places(parameters, LENGTH, jnp.dtype("float32")), expected, rtol=1e-5, atol=1e-6)


# The start. One size for all, with enough numbers in the smallest map for its largest to come near the bound.
WIDTH, INPUTS = 16, 4


def start(initial: Initial = "pytorch", features=INPUTS, used=None, marks=True, seed=0, **options):
    model = Transformer(layers=2, heads=2, width=WIDTH, mlp_factor=2, initial=initial, **options)
    return model.init(jax.random.key(seed), LENGTH, features, features, marks, used)


def maps(parameters) -> Iterator[tuple[Linear, int]]:
    """All linear maps with the number of inputs that each has in PyTorch."""
    yield parameters.readout, WIDTH
    for layer in parameters.layers:
        for map in (layer.query, layer.key, layer.value, layer.out, layer.up):
            yield map, WIDTH
        yield layer.down, 2 * WIDTH


def test_the_start_of_pytorch():
    """Uniform in ±1/√inputs: no number outside, and the largest of at least 64 within 10% of the bound (missed once in 800)."""
    parameters = start()
    embedding = np.concatenate([parameters.embed.weight, np.asarray(parameters.mark)[None]])
    cases = [(embedding, parameters.embed.bias, INPUTS + 1), *((m.weight, m.bias, inputs) for m, inputs in maps(parameters))]
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
    parameters = start(initial)
    for map, inputs in maps(parameters):
        weight = np.asarray(map.weight)
        assert weight.shape[0] == inputs
        assert not np.any(map.bias)
        if initial == "xavier":
            bound = math.sqrt(6 / sum(weight.shape))
            assert 0.9 * bound < np.abs(weight).max() <= bound
        elif weight.size >= 256:
            # Three standard errors of the spread of 256 numbers are 13%.
            assert weight.std() == pytest.approx(0.02, rel=0.15)
    assert not np.any(parameters.embed.bias)


@pytest.mark.parametrize("initial", ["pytorch", "xavier", "normal"])
@pytest.mark.parametrize("marks", [True, False])
def test_a_padded_start_is_that_of_the_smaller_model(initial, marks):
    """Also where its size is traced: the promise behind batching runs of several dims."""
    small = start(initial, marks=marks, positions="learned")
    traced = jax.jit(lambda used: start(initial, 6, (used, used), marks, positions="learned"))(jnp.int32(INPUTS))
    for large in (start(initial, 6, (INPUTS, INPUTS), marks, positions="learned"), traced):
        assert not np.any(large.embed.weight[INPUTS:])
        assert not np.any(large.readout.weight[:, INPUTS:])
        assert not np.any(large.readout.bias[INPUTS:])
        embed = large.embed._replace(weight=large.embed.weight[:INPUTS])
        readout = large.readout._replace(weight=large.readout.weight[:, :INPUTS], bias=large.readout.bias[:INPUTS])
        cut = large._replace(embed=embed, readout=readout)
        assert jax.tree.structure(cut) == jax.tree.structure(small)
        close(cut, small, 1e-6)


def test_keys_give_other_starts():
    one, two = (np.asarray(start(seed=seed).layers[0].query.weight) for seed in range(2))
    assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 4 / math.sqrt(one.size)


def test_tables_of_logits_start_at_zero_and_norms_at_one():
    parameters = start(attention="biased", norm="pre")
    for layer in parameters.layers:
        assert layer.bias is not None
        assert layer.norms is not None
        assert not np.any(layer.bias)
        assert all(np.all(s.gain == 1) and not np.any(s.offset) for s in layer.norms)
    assert parameters.norm is not None


def test_the_value_path_is_the_product_of_its_maps():
    model, parameters, *_ = made({"layers": 3})
    expected = np.zeros((FEATURES, OUTPUTS))
    for layer in parameters.layers:
        product = np.asarray(parameters.embed.weight, np.float64)
        for part in (layer.value.weight, layer.out.weight, parameters.readout.weight):
            product = product @ np.asarray(part, np.float64)
        expected += product
    close(model.value_path(parameters), expected)


def test_the_value_path_is_what_a_lone_token_adds():
    """One layer that is only attention, of a single token: the output moves with it by the value path."""
    model, parameters, *_ = made({"layers": 1, "mlp": False, "skip": False})
    tokens = jnp.asarray(np.random.default_rng(5).standard_normal((2, 1, FEATURES)), jnp.float32)
    marks = jnp.zeros((2, 1))
    moved = model.answer(parameters, tokens, marks)
    np.testing.assert_allclose(
        moved[0] - moved[1], (tokens[0, 0] - tokens[1, 0]) @ model.value_path(parameters), rtol=1e-4, atol=1e-5
    )


def test_marks_that_are_missing_are_named():
    model, parameters, tokens, _ = made({})
    for f in (model.forward, model.answer):
        with pytest.raises(InputError, match="marks is None"):
            f(parameters, tokens)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": 0}, "layers must be a whole number of at least 1, got 0"),
        ({"heads": True}, "heads must be a whole number of at least 1, got True"),
        ({"width": -4}, "width must be a whole number"),
        ({"mlp_factor": 1.5}, "mlp_factor must be a whole number of at least 1, got 1.5"),
        ({"heads": 3}, "heads must divide width, got 3 heads with width 256"),
        ({"width": 5, "heads": 1}, "sinusoidal positions need an even width, got 5"),
        ({"norm": "prae"}, "unknown norm 'prae'; did you mean pre"),
        ({"mask": "casual"}, "unknown mask 'casual'; did you mean causal"),
        ({"activation": "tanh"}, "unknown activation 'tanh'; known: relu, gelu"),
        ({"attention": "sofmax"}, "unknown attention 'sofmax'; did you mean softmax"),
        ({"initial": "torch"}, "unknown initial 'torch'; did you mean pytorch"),
        ({"positions": "rotary"}, "unknown positions 'rotary'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_options_are_named(values, message):
    with pytest.raises(InputError, match=message):
        Transformer(**values)
