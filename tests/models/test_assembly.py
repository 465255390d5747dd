"""The Transformer of switches: its ends are the Transformer of one layer and the toy model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.contract import Spec
from emergo.core.errors import InputError
from emergo.models import Assembly, Transformer

SPEC = Spec(length=5, inputs=4, outputs=3, marks=1)
OFF = {"embed": 0.0, "queries": 0.0, "maps": 1.0, "biases": 0.0, "skip": 0.0, "positions": 0.0}


def drawn(structure, seed=0):
    """Return parameters of this structure, drawn away from the start."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.5, x.shape), x.dtype), structure)


def made(**switches):
    model = Assembly(width=8, **switches)
    params = drawn(model.init(jax.random.key(0), SPEC))
    inputs = np.random.default_rng(1).normal(size=(2, SPEC.length, SPEC.inputs))
    return model, params, jnp.asarray(inputs, jnp.float32)


@pytest.mark.parametrize("heads", [1, 2])
def test_with_all_switches_on_it_is_the_transformer(heads):
    """The bias of keys adds the same to all scores of a query, so the softmax ignores it."""
    model, params, inputs = made(heads=heads)
    peer = Transformer(layers=1, heads=heads, width=8)
    theirs = drawn(peer.init(jax.random.key(0), SPEC), seed=2)
    layer = theirs.layers[0]
    layer = layer._replace(key=layer.key._replace(weight=params.key))
    layer = layer._replace(**{n: getattr(params, n) for n in ("query", "value", "out")})
    layer = layer._replace(up=params.up, down=params.down)
    theirs = theirs._replace(embed=params.embed, readout=params.readout, layers=(layer,))
    ours = model.apply(params, inputs)
    expected = peer.apply(theirs, inputs)
    np.testing.assert_allclose(ours.value, expected.value, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(
        np.asarray(ours.attention), np.asarray(expected.attention), rtol=2e-5, atol=1e-6
    )


def test_with_all_switches_off_it_is_the_toy_model_with_a_vector_on_tokens():
    model, params, inputs = made(mlp=False, **OFF)
    x = np.asarray(inputs, np.float64)
    scores = x @ np.asarray(params.vector, np.float64)[: SPEC.inputs]
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    mixed = np.einsum("nt,ntf->nf", weights, x)
    expected = mixed @ np.asarray(params.readout.weight, np.float64)[: SPEC.inputs]
    np.testing.assert_allclose(model.apply(params, inputs).value, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*OFF, "keep_content", "keep_mark"])
def test_every_switch_changes_the_answer(name):
    """Else a variant of the screen would be another one under a second name."""
    value = 1.0 if name.startswith("keep") else OFF[name]
    answers = []
    for switches in ({}, {name: value}):
        model = Assembly(width=8).replace(**switches)
        params = model.init(jax.random.key(0), SPEC)
        answers.append(model.apply(params, jnp.ones((1, SPEC.length, SPEC.inputs))).value)
    assert float(jnp.abs(answers[0] - answers[1]).max()) > 1e-4


def test_the_size_of_keys_is_that_of_the_heads_by_default():
    default, params, inputs = made(heads=2)
    sized = default.replace(key_size=4)
    np.testing.assert_array_equal(
        sized.apply(params, inputs).value, default.apply(params, inputs).value
    )
    small = default.replace(key_size=3).init(jax.random.key(0), SPEC)
    assert small.query.weight.shape == small.key.shape == (8, 6)
    assert small.value.weight.shape == (8, 8)
    with pytest.raises(InputError, match="key_size"):
        default.replace(key_size=3, queries=0.0)


def test_a_stream_that_is_narrower_than_the_inputs_is_refused():
    with pytest.raises(InputError, match=r"number of inputs, 4, .* got 2"):
        Assembly(width=2).init(jax.random.key(0), SPEC)


def test_a_scaled_embedding_has_the_size_of_the_reference_at_every_dim():
    """Rows of the initial embedding have squared norm width/3 inputs, and constant if kept."""
    width = 512
    for dim in (4, 64):
        spec = Spec(length=2, inputs=dim + 1, outputs=dim, marks=1)
        plain = Assembly(width=width).init(jax.random.key(0), spec).embed.weight
        kept = Assembly(width=width, keep_content=1.0).init(jax.random.key(0), spec).embed.weight
        norm = width / 3 / (dim + 1)
        # The squared norm of 512 uniform entries spreads by 4%.
        np.testing.assert_allclose(np.sum(plain[0] ** 2), norm, rtol=0.15)
        np.testing.assert_array_equal(plain[0], kept[0])
        np.testing.assert_allclose(
            kept[1:], plain[1:] * np.sqrt((dim + 1) / (Assembly.REFERENCE + 1)), 1e-5
        )
