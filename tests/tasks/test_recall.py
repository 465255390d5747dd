"""The distribution of the data of associative recall (C.1)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from emergo.core.contract import Output
from emergo.core.errors import InputError
from emergo.core.pytree import Schedule
from emergo.core.random import raw, uniform
from emergo.tasks import Recall
from emergo.tasks._recall import _different, circuits_probe


@st.composite
def options(draw):
    """Draw the options of any valid task (see `test_groups.py`)."""
    pairs = draw(st.integers(1, 5))
    placement = draw(st.sampled_from(("once", "chance", "chance or none")))
    burst = 1.0 if placement == "once" else draw(st.floats(0.25, pairs)) if pairs > 0.25 else 1.0
    return (
        pairs,
        draw(st.integers(max(3, pairs + 1), 24)),
        burst,
        draw(st.sampled_from((0.0, 0.3, 1.0))),
        placement,
    )


@functools.partial(jax.jit, static_argnames="n")
def draw(task, key, n):
    """Draw a batch in one program."""
    return task.batch(key, n, ())


def asked(batch):
    """Mark the pairs whose key is the query."""
    return np.asarray(batch.inputs)[:, :-1:2] == np.asarray(batch.inputs)[:, -1:]


@pytest.mark.slow
@settings(max_examples=6, deadline=None)  # each is compiled
@given(options(), st.integers(0, 2**32 - 1))
def test_every_sequence_is_a_mapping_and_a_query(options, seed):
    task = Recall(*options)
    batch = draw(task, jax.random.key(seed), 16)
    tokens = np.asarray(batch.inputs)
    assert tokens.shape == (16, task.length) == (16, 2 * task.pairs + 1)
    assert tokens.min() >= 0
    assert tokens.max() < task.vocabulary
    for row, target, relevant in zip(
        tokens, np.asarray(batch.target), np.asarray(batch.relevant), strict=True
    ):
        keys = row[:-1:2]
        values = row[1:-1:2]
        query = row[-1]
        assert not relevant[::2].any()  # keys and the query
        relevant = relevant[1::2]
        np.testing.assert_array_equal(keys == query, relevant)
        mapping = dict(zip(keys.tolist(), values.tolist(), strict=True))
        # Keys other than the query are different, and so are the values of different keys.
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


def test_different_numbers_equal_the_shuffle_of_fisher_and_yates():
    chance = np.asarray(uniform(raw(jax.random.key(3)), 300, 8))
    for size in (8, 9, 30):
        found = np.asarray(_different(jnp.asarray(chance), size))
        for row, drawn in zip(found, chance, strict=True):
            slots = list(range(size))
            for i, u in enumerate(drawn):
                pick = i + int(np.floor(u * np.float32(size - i)))
                slots[i], slots[pick] = slots[pick], slots[i]
            assert row.tolist() == slots[:8]


def test_frequency_of_the_query_in_the_context():
    n = 20_000
    pairs = 8
    key = jax.random.key(1)
    for burst in (1.0, 3.0):
        task = Recall(pairs, 20, burst, placement="chance or none")
        counts = asked(draw(task, key, n)).sum(1)
        found = np.bincount(counts, minlength=pairs + 1)
        expected = n * scipy.stats.binom.pmf(np.arange(pairs + 1), pairs, burst / pairs)
        enough = expected > 5
        assert (
            scipy.stats.chisquare(
                found[enough], expected[enough] * found[enough].sum() / expected[enough].sum()
            ).pvalue
            > 0.01
        )
        # With "chance", sequences without the query get one pair.
        moved = asked(draw(task.replace(placement="chance"), key, n)).sum(1)
        np.testing.assert_array_equal(moved, np.maximum(counts, 1))
    once = asked(draw(Recall(pairs, 20), key, n))
    assert scipy.stats.chisquare(once.sum(0)).pvalue > 0.01


def test_frequency_of_the_repeated_tokens():
    """It is p/2 + (1-p)/N for each of them, and (1-p)/N for other tokens."""
    n = 40_000
    size = 10
    p = 0.3
    query = np.asarray(draw(Recall(4, size, repeat=p), jax.random.key(2), n).inputs)[:, -1]
    mass = np.full(size, (1 - p) / size)
    mass[:2] += p / 2
    assert scipy.stats.chisquare(np.bincount(query, minlength=size), n * mass).pvalue > 0.01


@pytest.mark.parametrize(
    "own",
    [Recall(5, 9, 2.0, 0.3, "chance"), Recall(5, 14, 4.5, 0.0, "chance"), Recall(5, 9, repeat=0.5)],
)
def test_a_padded_task_draws_the_same_numbers(own):
    alone = own.batch(jax.random.key(0), 32, ())
    padded = own.padded({"vocabulary": 16})
    traced = jax.jit(lambda task: task.batch(jax.random.key(0), 32, ()))(padded)
    for inside in (padded.batch(jax.random.key(0), 32, ()), traced):
        for one, two in zip(alone, inside, strict=True):
            np.testing.assert_array_equal(one, two)
    assert own.spec.used is None
    assert padded.spec == own.spec._replace(
        inputs=16, outputs=16, used=(own.vocabulary, own.vocabulary)
    )


def test_losses_ignore_padded_tokens():
    task = Recall(2, 5)
    inside = task.padded({"vocabulary": 8})
    batch = task.batch(jax.random.key(0), 64, ())
    logits = jax.random.normal(jax.random.key(1), (64, 8))
    losses = inside.loss(Output(logits), batch)
    expected = -np.log(scipy.special.softmax(np.asarray(logits)[:, :5], axis=1))[
        np.arange(64), np.asarray(batch.target)
    ]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    right = np.asarray(logits)[:, :5].argmax(1) == np.asarray(batch.target)
    np.testing.assert_array_equal(inside.metrics(Output(logits), batch, ())["accuracy"], right)
    np.testing.assert_array_equal(
        inside.loss(Output(logits), batch), task.loss(Output(logits[:, :5]), batch)
    )


def test_the_test_set_and_its_variant():
    task = Recall(4, 9, 2.0, 0.3, "chance")
    assert task.at_test() == Recall(4, 9)
    assert dict(task.variants()) == {"repeated": (task, 1)}
    assert Recall(4, 9).variants() == {}
    assert (
        Recall(4, 9, repeat=0.1).variants().keys()
        == Recall(4, 9, 1.0, placement="chance").variants().keys()
        == {"repeated"}
    )
    # A traced number counts as repetition.
    names = []
    jax.jit(
        lambda one: (
            names.append(list(one.variants())),
            one.at_test().batch(jax.random.key(0), 2, ()),
        )[1]
    )(Recall(4, 9))
    assert names == [["repeated"]]


def test_circuits_of_a_perfect_induction_head():
    """Layer 0 attends to the previous token, layer 1 to the successor of an earlier occurrence."""
    task = Recall(4, 9)
    batch = task.batch(jax.random.key(0), 32, ())
    tokens = np.asarray(batch.inputs)
    length = task.length
    before = np.eye(length, k=-1, dtype=np.float32)
    before[0, 0] = 1
    after = np.zeros((32, length, length), np.float32)
    for row, sequence in enumerate(tokens):
        for query in range(length):
            earlier = np.flatnonzero(sequence[:query] == sequence[query])
            keys = earlier[earlier % 2 == 0] if query == length - 1 else earlier
            after[row, query, keys[-1] + 1 if len(keys) else 0] = 1
    patterns = [np.broadcast_to(before, (32, 1, length, length)), after[:, None]]
    taps = {f"layers.{i}.pattern": jnp.asarray(pattern) for i, pattern in enumerate(patterns)}
    curves = circuits_probe(None, Output(jnp.zeros((32, 9)), taps=taps), batch, (), 0)
    assert circuits_probe.reads == ("layers.*.pattern",)
    assert curves["copying"][0, 0] == curves["previous"][0, 0] == 1
    assert curves["selecting"][1, 0] == 1
    assert curves["selecting"][0, 0] == np.mean(np.asarray(batch.relevant)[:, -2])
    np.testing.assert_allclose(curves["induction"][1, 0], 1, rtol=1e-6)
    assert circuits_probe(None, Output(jnp.zeros((32, 9))), batch, (), 0) == {}


def test_thresholds_must_be_above_guessing():
    Recall(4, 8).check_threshold(0.9)
    Recall(1, 8).check_threshold(0.05)
    for number in (0.25, 1.5):
        with pytest.raises(
            InputError, match="guessing one of the context's values is right with probability 1/4"
        ):
            Recall(4, 8).check_threshold(number)


class Between(Schedule):
    low: float = 0.0
    high: float = 1.0

    def extremes(self):
        return (self.low, self.high)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"vocabulary": 4},
            "Recall.vocabulary must be larger than pairs, so that keys differ, got 4 with 4 pairs",
        ),
        (
            {"burst": 5.0, "placement": "chance"},
            r"Recall.burst must be above 0 and at most pairs \(4\), .* got 5.0",
        ),
        (
            {"burst": Between(1, 5), "placement": "chance"},
            "Recall.burst must be above 0 and at most pairs",
        ),
        ({"burst": Between(1, 2)}, "1 with placement 'once'"),
        ({"burst": 2.0}, "1 with placement 'once', got 2.0; choose placement 'chance'"),
        ({"repeat": Between(0, 1.5)}, "Recall.repeat: every value .* from 0 to 1, got 1.5"),
    ],
)
def test_wrong_input_is_named(changes, message):
    with pytest.raises(InputError, match=message):
        Recall(**({"pairs": 4, "vocabulary": 8} | changes))
