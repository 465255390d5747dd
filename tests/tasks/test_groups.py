"""Positions and strengths of groups."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo.core.errors import InputError
from emergo.core.pytree import Schedule
from emergo.tasks import Groups


@st.composite
def groups(draw, most=4):
    """Draw the options of any valid groups.

    The groups themselves are made in the tests, because type checks at run time use randomness,
    which a strategy must not.
    """
    spans = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=most)))
    weights = (
        tuple(tuple(draw(st.floats(0.1, 2.0)) for _ in range(n)) for n in spans)
        if draw(st.booleans())
        else None
    )
    stride = draw(st.one_of(st.none(), st.integers(1, 4)))
    return (spans, draw(st.floats(1, 3)), draw(st.sampled_from(["near", "far"])), stride, weights)


@given(groups())
def test_every_group_has_its_span_and_its_weights(options):
    one = Groups(*options)
    assert one.members.shape == one.mixing.shape == (one.count, one.window)
    assert (one.members.sum(1) == one.spans).all()
    assert one.members[:, -1].any()  # the window ends with the last group
    assert ((one.mixing > 0) == one.members).all()
    for k, span in enumerate(one.spans):
        lags = np.flatnonzero(one.members[k])
        np.testing.assert_array_equal(lags, one.starts[k] + np.arange(span))
        given = np.ones(span) if one.weights is None else one.weights[k]
        np.testing.assert_array_equal(one.mixing[k, lags], given)
    if one.stride is None:
        assert one.disjoint
        assert one.members.all(0).all() == (one.count == 1)
        assert one.members.any(0).all()


@given(groups())
def test_strengths_fall_along_the_ranking_by_the_importance(options):
    one = Groups(*options)
    ranked = one.strengths[list(one.ranking)]
    assert ranked[-1] == 1
    np.testing.assert_allclose(ranked[:-1], one.importance * ranked[1:])


def test_the_settings_of_the_paper():
    minimal = Groups()
    np.testing.assert_allclose(minimal.strengths, [2.89, 1.7, 1.0])
    assert minimal.window == 6
    reversed_ = Groups((2, 4, 8), strongest="far")
    assert reversed_.window == 14
    assert reversed_.ranking == (2, 1, 0)
    overlapping = Groups((4, 4, 4), stride=2)
    assert overlapping.window == 8
    assert not overlapping.disjoint
    np.testing.assert_array_equal(overlapping.members.sum(0), [1, 1, 2, 2, 2, 2, 1, 1])
    assert Groups((1, 1), stride=3).disjoint


def test_strengths_follow_a_traced_importance():
    """Runs of one program may differ in importance. Powers in fp32 are exact to rounding."""
    many = jax.vmap(lambda m: Groups((1, 2, 1), m, "far").strengths)(jnp.array([1.0, 1.7, 3.0]))
    expected = [Groups((1, 2, 1), m, "far").strengths for m in (1.0, 1.7, 3.0)]
    assert many.dtype == jnp.float32
    np.testing.assert_allclose(many, expected, rtol=3e-7)
    leaves, structure = jax.tree.flatten(Groups((1, 2), 1.5))
    assert leaves == [1.5]
    assert jax.tree.unflatten(structure, leaves) == Groups((1, 2), 1.5)
    assert (
        jax.tree.structure(Groups((1, 2), 2.5))
        == structure
        != jax.tree.structure(Groups((2, 1), 1.5))
    )


class Constant(Schedule):
    number: float = 2.0

    def extremes(self):
        return (self.number,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"spans": (2, 0)},
            "Groups.spans must be a tuple .in TOML a list. of whole numbers of at least 1",
        ),
        ({"spans": (2, 1.5)}, r"Groups.spans .* got \(2, 1.5\)"),
        ({"spans": 3}, "Groups.spans must be a tuple"),
        ({"importance": Constant()}, "Groups.importance cannot be a schedule"),
        ({"weights": ((1.0,), (1.0,), (1.0,))}, "Groups.weights must be a tuple"),
        ({"spans": (2,), "weights": ((1.0, -1.0),)}, "Groups.weights must be a tuple"),
        ({"spans": (1,), "weights": (("much",),)}, "Groups.weights must be a tuple"),
        ({"spans": (1,), "weights": (1.0,)}, "with one tuple per group"),
    ],
)
def test_wrong_input_is_named(values, message):
    with pytest.raises(InputError, match=message):
        Groups(**values)


def test_lists_become_tuples():
    lists: Any = {"spans": [1, 2], "weights": [[1.0], [0.5, 2.0]]}
    assert Groups(**lists) == Groups((1, 2), weights=((1.0,), (0.5, 2.0)))
