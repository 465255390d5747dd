"""Forms of attention, masks and positional encodings against their formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import tree_leaves_with_path as leaves

from emergo.core.contract import Spec
from emergo.core.errors import InputError
from emergo.core.identity import canonical, type_name
from emergo.core.pytree import per_run
from emergo.models import Attention, Transformer
from emergo.models._attention import FORMS, attend, causal, near, rotate, score, sinusoids, weigh
from emergo.models.fast import find_path


def drawn(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("form", ["softmax", "sigmoid", "linear"])
@pytest.mark.parametrize("top_k", [1, 2, 9])
def test_top_k_sees_only_the_largest_scores(form, window, top_k):
    """Other positions do not count as visible either."""
    (scores,) = drawn((2, 6, 6))
    weights = np.asarray(weigh(form, scores, None if window is None else near(6, window), top_k))
    for n, i in np.ndindex(2, 6):
        seen = [j for j in range(6) if window is None or abs(i - j) < window]
        chosen = sorted(seen, key=lambda j: -float(scores[n, i, j]))[:top_k]
        own = np.asarray(scores)[n, i, chosen]
        expected = {
            "softmax": np.exp(own) / np.exp(own).sum(),
            "sigmoid": 1 / (1 + len(chosen) * np.exp(-own)),
            "linear": own / len(chosen),
        }[form]
        np.testing.assert_allclose(weights[n, i, chosen], expected, rtol=1e-5)
        assert not np.delete(weights[n, i], chosen).any()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("form", ["softmax", "linear", "sigmoid", "biased", "positional"])
@pytest.mark.parametrize("learned", [False, True])
def test_forms_equal_their_formulas(form, masked, learned):
    """One sequence, head and query at a time."""
    q, k, v, bias, temperature = drawn((2, 4, 3, 6), (2, 4, 3, 6), (2, 4, 3, 6), (3, 4, 4), (3,))
    given = bias if form in ("biased", "positional") else None
    logs = temperature if learned else None
    mask = causal(4) if masked else None
    weights = np.broadcast_to(weigh(form, score(form, q, k, given, logs), mask), (2, 3, 4, 4))
    mixed = attend(jnp.asarray(weights), v)
    for n, h, i in np.ndindex(2, 3, 4):
        seen = range(i + 1 if masked else 4)
        scores = np.array([np.dot(q[n, i, h], k[n, j, h]) / np.sqrt(6) for j in seen])
        scores = {
            "biased": scores + bias[h, i, : len(seen)],
            "positional": np.asarray(bias[h, i, : len(seen)]),
        }.get(form, scores)
        scores = scores / np.exp(temperature[h]) if learned else scores
        if form == "linear":
            expected = scores / len(seen)
        elif form == "sigmoid":
            expected = 1 / (1 + len(seen) * np.exp(-scores))
        else:
            expected = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(weights[n, h, i, : len(seen)], expected, rtol=1e-4, atol=1e-6)
        assert not weights[n, h, i, len(seen) :].any()
        np.testing.assert_allclose(
            mixed[n, i, h], expected @ np.asarray(v)[n, : len(seen), h], rtol=1e-3, atol=1e-5
        )


def test_sinusoids():
    """Vaswani et al. 2017, Section 3.5."""
    angle = np.arange(7)[:, None] / 10_000 ** (np.arange(0, 8, 2) / 8)
    expected = np.zeros((7, 8))
    expected[:, ::2] = np.sin(angle)
    expected[:, 1::2] = np.cos(angle)
    np.testing.assert_allclose(sinusoids(7, 8), expected, rtol=1e-5, atol=1e-6)


def test_rope_multiplies_complex_numbers():
    """Su et al. 2021: pairs of features are complex numbers, multiplied by exp(i angle)."""
    x = np.random.default_rng(0).standard_normal((2, 7, 3, 6))
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(
        1j * np.arange(7)[:, None] / 10_000 ** (np.arange(0, 6, 2) / 6)
    )[:, None]
    expected = np.stack([turned.real, turned.imag], -1).reshape(x.shape)
    np.testing.assert_allclose(
        rotate(jnp.asarray(x, jnp.float32), 7), expected, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        rotate(jnp.asarray(x[:, -2:], jnp.float32), 7), expected[:, -2:], rtol=1e-5, atol=1e-5
    )
    low = rotate(jnp.asarray(x, jnp.bfloat16), 7)
    assert low.dtype == jnp.bfloat16


class Same(Attention):
    """Softmax, by another class."""


class Powers(Attention):
    """Weights are powers of positive scores, with an exponent that each head learns."""

    start: float = per_run(default=2.0)

    def init(self, key, heads, size, length):
        return {"power": jnp.full(heads, self.start)}

    def weights(self, params, scores, visible):
        assert visible is not None
        powers = jnp.where(visible, jax.nn.softplus(scores) ** params["power"][:, None, None], 0)
        return powers / powers.sum(-1, keepdims=True)


class Impostor(Same):
    def __eq__(self, other):
        return True

    __hash__ = Same.__hash__


class Misshapen(Attention):
    def scores(self, params, queries, keys):
        return super().scores(params, queries, keys)[:, 0]


class Failing(Attention):
    def weights(self, params, scores, visible):
        return params["none"]


SPEC = Spec(length=6, inputs=3, outputs=2)


def model_of(attention, **options):
    return Transformer(layers=2, heads=2, width=8, mask="causal", attention=attention, **options)


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"temperature": "learned"}])
def test_built_in_forms_have_the_interface_of_a_users(options):
    (x,) = drawn((4, 6, 3))
    one = model_of("softmax", **options)
    two = model_of(Same(), **options)
    params = one.init(jax.random.key(0), SPEC)
    assert jax.tree.structure(params) == jax.tree.structure(two.init(jax.random.key(0), SPEC))
    np.testing.assert_array_equal(one.apply(params, x).value, two.apply(params, x).value)


def test_a_form_has_parameters_that_get_a_gradient():
    (x,) = drawn((4, 6, 3))
    model = model_of(Powers(3.0))
    params = model.init(jax.random.key(0), SPEC)
    names = [jax.tree_util.keystr(p, simple=True, separator=".") for p, _ in leaves(params)]
    assert "layers.1.attention.power" in names
    output = model.apply(params, x)
    assert output.attention is not None
    np.testing.assert_allclose(output.attention.sum(-1), 1, rtol=1e-5)
    gradient = jax.grad(lambda p: jnp.sum(model.apply(p, x).value ** 2))(params)
    assert all(jnp.all(layer.attention["power"] != 0) for layer in gradient.layers)
    np.testing.assert_array_equal(params.layers[0].attention["power"], [3, 3])


def test_identities_of_built_in_forms_stay():
    assert canonical(model_of(Attention())) == canonical(model_of("softmax"))
    assert "attention" not in canonical(model_of("softmax"))
    for name, form in FORMS.items():
        assert model_of(form).attention == name
    assert canonical(model_of(Same()))["attention"] == {"type": type_name(Same)}
    assert canonical(model_of(Powers(3.0)))["attention"]["start"] == 3


@pytest.mark.parametrize("attention", [Same(), Powers(), Impostor()])
def test_a_users_form_has_no_optimised_path(attention):
    model = Transformer(layers=1, heads=2, width=8).replace(attention=attention)
    assert type(model.attention) is type(attention)
    assert find_path(model, SPEC) is None
    assert find_path(model.replace(attention="softmax"), SPEC) is not None


def test_what_a_form_returns_is_checked():
    (x,) = drawn((4, 6, 3))
    for attention, words in [
        (Misshapen(), r"Misshapen.scores must return .*\(4, 2, 6, 6\), got shape \(4, 6, 6\)"),
        (Failing(), "Failing.weights failed: TypeError"),
    ]:
        model = model_of(attention)
        with pytest.raises(InputError, match=words):
            model.apply(model.init(jax.random.key(0), SPEC), x)
    with pytest.raises(InputError, match=r"attention 'softmaxx'; did you mean softmax\?"):
        model_of("softmaxx")
