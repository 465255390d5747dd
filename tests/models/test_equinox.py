"""Equinox modules as models."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.contract import Output, Spec, Tap
from emergo.core.errors import InputError
from emergo.core.identity import canonical
from emergo.models import EquinoxModel

SPEC = Spec(length=4, inputs=3, outputs=2)
X = jnp.asarray(np.random.default_rng(0).standard_normal((5, 4, 3)), jnp.float32)


class Flat(eqx.Module):
    mlp: eqx.nn.MLP

    def __call__(self, x):
        return self.mlp(x.ravel())


class Tapped(eqx.Module):
    """A module with a number and a function among its leaves."""

    mlp: eqx.nn.MLP
    gain: float

    def __call__(self, x, tap):
        hidden = tap("mean", self.gain * x.mean(0))
        return tap("answer", self.mlp(hidden))


class Counted(eqx.Module):
    count: jax.Array

    def __call__(self, x):
        return x[0] * self.count


def make_flat(key, spec):
    return Flat(
        eqx.nn.MLP(spec.length * spec.inputs, spec.outputs, 16, 2, activation=jnp.tanh, key=key)
    )


def make_tapped(key, spec):
    return Tapped(eqx.nn.MLP(spec.inputs, spec.outputs, 8, 1, key=key), 2.0)


def make_counted(key, spec):
    return Counted(jnp.arange(spec.inputs))


def test_values_and_gradients_are_those_of_the_module():
    model = EquinoxModel(make_flat)
    params = jax.jit(lambda key: model.init(key, SPEC))(jax.random.key(0))
    module = make_flat(jax.random.key(0), SPEC)
    assert all(eqx.is_inexact_array(leaf) for leaf in jax.tree.leaves(params))
    np.testing.assert_allclose(
        model.apply(params, X).value, jax.vmap(module)(X), rtol=1e-5, atol=1e-6
    )
    ours = jax.jit(jax.grad(lambda p: jnp.sum(model.apply(p, X).value ** 2)))(params)
    theirs = eqx.filter_grad(lambda m: jnp.sum(jax.vmap(m)(X) ** 2))(module)
    for a, b in zip(
        jax.tree.leaves(ours), jax.tree.leaves(eqx.filter(theirs, eqx.is_array)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    assert ".mlp.layers[0].weight" in names


def test_taps_see_all_sequences():
    """Inside `jit`, `grad` and a `vmap` over runs, too."""
    model = EquinoxModel(make_tapped)
    params = model.init(jax.random.key(0), SPEC)

    @jax.jit
    def read(params):
        tap = Tap(reads=["*"])
        output = model.apply(params, X, tap)
        return output.value, tap.taken

    value, taken = read(params)
    assert {name: x.shape for name, x in taken.items()} == {
        "mean": (5, 3),
        "answer": (5, 2),
        "value": (5, 2),
    }
    np.testing.assert_allclose(taken["mean"], 2 * X.mean(1), rtol=1e-5)
    np.testing.assert_allclose(taken["answer"], value, rtol=1e-6)

    def shuffled(params):
        """Reverse the order of the sequences' means, which needs a tap that sees all of them."""
        return model.apply(params, X, lambda name, x: x[::-1] if name == "mean" else x).value

    np.testing.assert_allclose(shuffled(params), value[::-1], rtol=1e-5, atol=1e-6)
    runs = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), params)
    many = jax.jit(jax.vmap(jax.grad(lambda p: jnp.sum(shuffled(p) ** 2))))(runs)
    alone = jax.grad(lambda p: jnp.sum(model.apply(p, X).value ** 2))(params)
    for a, b in zip(jax.tree.leaves(many), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(a[0], b, rtol=1e-4, atol=1e-5)


def test_parameters_of_equal_models_can_be_stacked():
    one, two = (EquinoxModel(make_tapped).init(jax.random.key(i), SPEC) for i in range(2))
    assert jax.tree.structure(one) == jax.tree.structure(two)
    assert hash(jax.tree.structure(one)) == hash(jax.tree.structure(two))
    assert jax.tree.structure(one) != jax.tree.structure(
        EquinoxModel(make_flat).init(jax.random.key(0), SPEC)
    )


def test_untrainable_arrays_are_named():
    with pytest.raises(
        InputError, match=r"EquinoxModel: count is an array of int32, which cannot be trained"
    ):
        EquinoxModel(make_counted).init(jax.random.key(0), SPEC)


class Attentive(eqx.Module):
    """A module with dropout that returns its attention."""

    query: jax.Array
    dropout: eqx.nn.Dropout

    def __call__(self, x, key):
        weights = jax.nn.softmax(x @ self.query)
        mixed = self.dropout(jnp.concatenate([weights @ x] * 20), key=key)
        return Output(mixed[:2], attention=weights[None, None])


def make_attentive(key, spec, rate=0.0, start=(0.0,)):
    return Attentive(jnp.full(spec.inputs, sum(start)), eqx.nn.Dropout(rate))


def test_a_module_may_return_its_attention():
    model = EquinoxModel(make_attentive, start=[1, 2.0])
    output = model.apply(model.init(jax.random.key(0), SPEC), X)
    assert output.attention is not None
    assert output.attention.shape == (5, 1, 1, 4)
    # Sums in another order.
    np.testing.assert_allclose(
        output.attention[:, 0, 0], jax.nn.softmax(3 * X.sum(-1), -1), rtol=1e-5
    )


def test_dropout_gets_a_key_for_each_sequence_in_training_only():
    model = EquinoxModel(make_attentive, rate=0.5)
    params = model.init(jax.random.key(0), SPEC)
    alike = jnp.broadcast_to(X[:1], (64, 4, 3))
    evaluated = model.apply(params, alike).value
    trained = model.apply(params, alike, Tap(key=jax.random.key(1))).value
    assert np.ptp(evaluated, 0).max() == 0
    dropped = np.asarray(trained == 0)
    assert 0.3 < dropped.mean() < 0.7  # 128 draws at rate 1/2: 4.5 standard deviations
    assert dropped.any(0).all()
    assert not dropped.all(1).all()


def test_options_are_part_of_the_identity_and_may_be_varied():
    plain = EquinoxModel(make_attentive)
    assert canonical(plain) == {"type": "EquinoxModel", "make": canonical(make_attentive)}
    one = EquinoxModel(make_attentive, rate=0.5, start=[1, 2])
    assert one == EquinoxModel(make_attentive, {"start": (1, 2), "rate": 0.5})
    assert one.replace(options={"rate": 0.5, "start": (1, 2)}) == one
    assert canonical(one)["options"] == [["rate", 0.5], ["start", [1, 2]]]
    with pytest.raises(InputError, match="cannot be part of a run"):
        EquinoxModel(make_attentive, start=object())
