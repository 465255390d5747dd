"""The law of associative recall's data, as C.1 states it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from emergo._errors import InputError
from emergo._random import raw, uniform
from emergo.tasks import Recall, RecallTraits
from emergo.tasks._recall import _different


@st.composite
def tasks(draw):
    pairs = draw(st.integers(1, 5))
    placement = draw(st.sampled_from(("once", "chance", "chance or none")))
    burst = 1.0 if placement == "once" else draw(st.floats(0.25, pairs)) if pairs > 0.25 else 1.0
    return Recall(pairs, draw(st.integers(max(3, pairs + 1), 24)), burst, draw(st.sampled_from((0.0, 0.3, 1.0))), placement)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)  # each is compiled
@given(tasks(), st.integers(0, 2**32 - 1))
def test_every_sequence_is_a_mapping_and_a_query(task, seed):
    batch = task.sample(jax.random.key(seed), 16)
    tokens = np.asarray(batch.tokens)
    assert tokens.shape == (16, task.length) == (16, 2 * task.pairs + 1)
    assert tokens.min() >= 0
    assert tokens.max() < task.vocabulary
    for row, target, relevant in zip(tokens, np.asarray(batch.target), np.asarray(batch.relevant), strict=True):
        keys, values, query = row[:-1:2], row[1:-1:2], row[-1]
        np.testing.assert_array_equal(keys == query, relevant)
        mapping = dict(zip(keys.tolist(), values.tolist(), strict=True))
        # Keys but for the query are without repetition, and different keys have different values.
        others = keys[~relevant]
        assert len(set(others.tolist())) == len(others)
        assert len(set(mapping.values())) == len(mapping)
        assert all(mapping[k] == v for k, v in zip(keys.tolist(), values.tolist(), strict=True))
        if relevant.any():
            assert mapping[query] == target
        else:
            assert task.placement == "chance or none"
            assert target not in values
        if task.placement == "once":
            assert relevant.sum() == 1


def test_numbers_that_differ_are_those_of_fisher_and_yates():
    chance = np.asarray(uniform(raw(jax.random.key(3)), 300, 8))
    for size in (8, 9, 30):
        found = np.asarray(_different(jnp.asarray(chance), size))
        for row, drawn in zip(found, chance, strict=True):
            places = list(range(size))
            for i, u in enumerate(drawn):
                pick = i + int(np.floor(u * np.float32(size - i)))
                places[i], places[pick] = places[pick], places[i]
            assert row.tolist() == places[:8]


def test_every_arrangement_is_as_likely():
    found = np.asarray(_different(uniform(raw(jax.random.key(0)), 24_000, 3), 4))
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 24
    assert scipy.stats.chisquare(counts).pvalue > 0.01


def test_how_often_the_query_stands_in_the_context():
    n, pairs = 20_000, 8
    key = jax.random.key(1)
    for burst in (1.0, 3.0):
        task = Recall(pairs, 20, burst, placement="chance or none")
        counts = np.asarray(task.sample(key, n).relevant).sum(1)
        found = np.bincount(counts, minlength=pairs + 1)
        expected = n * scipy.stats.binom.pmf(np.arange(pairs + 1), pairs, burst / pairs)
        enough = expected > 5
        assert (
            scipy.stats.chisquare(found[enough], expected[enough] * found[enough].sum() / expected[enough].sum()).pvalue > 0.01
        )
        # With "chance" the same sequences, and one place where chance gave none.
        moved = np.asarray(dataclasses.replace(task, placement="chance").sample(key, n).relevant).sum(1)
        np.testing.assert_array_equal(moved, np.maximum(counts, 1))
    once = np.asarray(Recall(pairs, 20).sample(key, n).relevant)
    assert scipy.stats.chisquare(once.sum(0)).pvalue > 0.01


def test_how_often_the_query_is_one_of_the_two():
    """Mass p/2 + (1-p)/N on the repeated tokens, (1-p)/N on the rest."""
    n, size, p = 40_000, 10, 0.3
    query = np.asarray(Recall(4, size, repeat=p).sample(jax.random.key(2), n).tokens[:, -1])
    mass = np.full(size, (1 - p) / size)
    mass[:2] += p / 2
    assert scipy.stats.chisquare(np.bincount(query, minlength=size), n * mass).pvalue > 0.01


def test_a_hull_draws_what_its_tasks_draw():
    own = [Recall(5, 9, 2.0, 0.3, "chance"), Recall(5, 16, 4.5, 0.0, "chance")]
    hull = own[0].hull(own[1:])
    assert (hull.vocabulary, hull.burst, hull.repeat) == (16, 4.5, 1.0)
    for task in own:
        traits = RecallTraits(jnp.int32(task.vocabulary), jnp.float32(task.burst), jnp.float32(task.repeat))
        for one, two in zip(task.sample(jax.random.key(0), 32), hull.sample(jax.random.key(0), 32, traits=traits), strict=True):
            np.testing.assert_array_equal(one, two)


def test_losses_leave_out_tokens_that_are_not_there():
    task, hull = Recall(2, 5), Recall(2, 8)
    batch = task.sample(jax.random.key(0), 64)
    logits = jax.random.normal(jax.random.key(1), (64, 8))
    found = hull.losses(logits, batch, task.traits)
    expected = -np.log(scipy.special.softmax(np.asarray(logits)[:, :5], axis=1))[np.arange(64), np.asarray(batch.target)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    right = np.asarray(logits)[:, :5].argmax(1) == np.asarray(batch.target)
    np.testing.assert_array_equal(hull.correct(logits, batch, task.traits), right)


def test_what_a_model_reads():
    task = Recall(2, 5)
    batch = task.sample(jax.random.key(0), 3)
    tokens, marks = task.encode(batch)
    assert marks is None
    np.testing.assert_array_equal(np.argmax(tokens, -1), batch.tokens)
    np.testing.assert_array_equal(np.sum(tokens, -1), 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": 0}, "pairs must be a whole number of at least 1, got 0"),
        ({"vocabulary": 4}, "vocabulary must be larger than pairs, so that keys differ, got 4 with 4 pairs"),
        ({"burst": 5.0, "placement": "chance"}, "burst must be above 0 and at most pairs, got 5.0 with 4 pairs"),
        ({"burst": 2.0}, "placement 'once' has a burst of 1, got 2.0; choose placement 'chance'"),
        ({"repeat": 1.5}, r"repeat must be in \[0, 1\], got 1.5"),
        ({"placement": "twice"}, "unknown placement 'twice'"),
    ],
)
def test_wrong_input_is_named(unchecked, changes, message):
    with pytest.raises(InputError, match=message):
        Recall(**({"pairs": 4, "vocabulary": 8} | changes))
