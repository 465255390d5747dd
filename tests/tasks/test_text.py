"""Windows of text, and the ways to repeat."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo import InputError
from emergo.core.contract import Output
from emergo.tasks import Text
from tests.training.untyped import Switch

LENGTH = 32
# Every token occurs once, so that a token is a position in the corpus.
SOURCE = np.arange(10_000)
TASK = Text(SOURCE, length=LENGTH, vocabulary=10_000)
DATA = TASK.data()
KEY = jax.random.key(3)


def drawn(task, step, n=16, key=KEY):
    """Return whole sequences: the inputs and the last target."""
    batch = task.from_corpus(DATA, key, step, n, ())
    assert jnp.array_equal(batch.inputs[:, 1:], batch.target[:, :-1])
    return np.asarray(jnp.concatenate([batch.inputs, batch.target[:, -1:]], 1))


def test_no_token_is_read_twice_within_an_epoch():
    n = 10
    steps = (len(DATA["training"]) - 1) // LENGTH // n
    draw = jax.jit(lambda step: TASK.from_corpus(DATA, KEY, step, n, ()).target)
    epochs = [[np.asarray(draw(epoch * steps + i)) for i in range(steps)] for epoch in (0, 1)]
    for epoch in epochs:
        tokens = np.concatenate(epoch).ravel()
        assert len(set(tokens)) == len(tokens) > 0.95 * len(DATA["training"])
        assert set(tokens) <= set(DATA["training"].tolist())
    assert not np.array_equal(epochs[0], epochs[1])


def test_validation_text_is_not_trained_and_not_repeated():
    task = TASK.replace(copy=1.0, subset_share=1.0, phrase_repeats=2.0)
    assert task.at_test() == TASK.at_test()
    test = drawn(task.at_test(), None)
    assert set(test.ravel()) <= set(DATA["validation"].tolist())
    assert len(set(test[:, :-1].ravel())) == test[:, :-1].size
    assert not np.array_equal(test, drawn(TASK.at_test(), None, key=jax.random.key(4)))


def test_runs_read_in_different_orders():
    assert not np.array_equal(drawn(TASK, 0), drawn(TASK, 0, key=jax.random.key(4)))
    assert not np.array_equal(drawn(TASK, 0), drawn(TASK, 1))
    assert np.array_equal(drawn(TASK, 1), drawn(TASK, 1))


@pytest.mark.parametrize("length", [32, 33])
def test_the_second_half_repeats_the_first(length):
    task = Text(SOURCE, length=length, vocabulary=10_000, copy=0.25)
    tokens = drawn(task, 0, n=250)
    half = length // 2
    copied = (tokens[:, half : 2 * half] == tokens[:, :half]).all(1)
    assert 0.18 < copied.mean() < 0.32
    assert (np.diff(tokens[~copied]) == 1).mean() > 0.98  # windows, apart from ends of documents
    assert (tokens[:, :half] == drawn(task.replace(copy=0.0), 0, n=250)[:, :half]).all()


def test_a_share_of_sequences_comes_from_a_small_subset():
    task = TASK.replace(subset_share=0.5, subset_size=4)
    tokens = np.concatenate([drawn(task, step) for step in range(10)])
    plain = np.concatenate([drawn(TASK, step) for step in range(10)])
    subset = (tokens != plain).any(1)
    assert 0.35 < subset.mean() < 0.65
    assert len({tuple(row) for row in tokens[subset]}) == 4
    assert not set(plain[:, 0]) & set(tokens[subset, 0])  # these are read last


def test_phrases_are_repeated_at_random_places():
    size = 4
    task = TASK.replace(phrase_repeats=2.0, phrase_length=size)
    tokens = drawn(task, 0, n=250)
    plain = drawn(TASK, 0, n=250)
    changed = tokens != plain
    repeats = changed.sum(1) / size
    assert 1.7 < repeats.mean() < 2.3
    assert set(repeats) <= set(range(9))
    for row, was, mask in zip(tokens, plain, changed, strict=True):
        phrases = {tuple(row[mask][i : i + size]) for i in range(0, mask.sum(), size)}
        assert len(phrases) <= 1  # one phrase of the sequence itself
        assert all(set(phrase) <= set(was) for phrase in phrases)
    places = np.argmax(changed[changed.any(1)], 1)
    assert len(set(places.tolist())) > 15


@pytest.mark.parametrize(
    "amounts",
    [
        {"copy": 0.5},
        {"copy": 0.8, "copy_after": "random"},
        {"subset_share": 0.3, "subset_size": 1},
        {"phrase_repeats": 1.5, "phrase_length": 4},
    ],
    ids=["half", "random", "subset", "phrases"],
)
def test_the_share_of_new_tokens_is_counted(amounts):
    task = TASK.replace(**amounts)
    tokens = drawn(task, 0, n=280)[:, :-1]
    share = len(set(tokens.ravel().tolist())) / tokens.size
    assert share == pytest.approx(float(task.new_share), abs=0.05)
    assert share < 0.9 < 1 == TASK.new_share


def period_of(row):
    """Return the number of tokens after which a row of different tokens repeats."""
    return int(np.flatnonzero(row[1:] == row[0])[0]) + 1


def test_sequences_may_repeat_after_a_random_number_of_tokens():
    task = TASK.replace(copy=0.5, copy_after="random")
    tokens = drawn(task, 0, n=250)
    copied = np.array([row[0] in row[1:] for row in tokens])
    assert 0.4 < copied.mean() < 0.6
    periods = [period_of(row) for row in tokens[copied]]
    assert {*periods} == {*range(LENGTH // 4, LENGTH // 2 + 1)}
    for row, period in zip(tokens[copied], periods, strict=True):
        assert (row[period:] == row[:-period]).all()


def test_copying_is_measured_on_random_tokens():
    variant = TASK.replace(copy=0.3).variants()["copied"]
    batch = variant.task.from_corpus(DATA, KEY, None, 20, ())
    for row, target in zip(np.asarray(batch.inputs), np.asarray(batch.target), strict=True):
        period = period_of(row)
        assert (row[period:] == row[:-period]).all()
        assert (np.diff(row[:period]) == 1).mean() < 0.2
        # The first part, and the first copied token, cannot be foreseen.
        assert (target[:period] == -1).all()
        assert (target[period:-1] == row[period + 1 :]).all()
    logits = 20 * jax.nn.one_hot(jnp.maximum(batch.target, 0), TASK.vocabulary)
    output = Output(logits)
    assert variant.task.metrics(output, batch, ())["accuracy"].tolist() == [1.0] * 20
    assert (variant.task.loss(output, batch) < 0.01).all()


def test_measurements_by_position():
    batch = TASK.from_corpus(DATA, KEY, None, 8, ())
    share = jnp.linspace(0, 10, LENGTH)[:, None]
    logits = share * jax.nn.one_hot(batch.target, TASK.vocabulary)
    output = Output(logits)
    measured = TASK.probes()[0](None, output, batch, (), 0)
    bins = np.asarray(measured["loss_by_position"])
    assert bins.shape == (6,)  # positions 0, 1, 2-3, 4-7, 8-15, 16-31
    assert (np.diff(bins) < 0).all()
    by_position = -jax.nn.log_softmax(logits)[0, jnp.arange(LENGTH), batch.target[0]]
    np.testing.assert_allclose(bins[2], by_position[2:4].mean(), rtol=1e-5)
    expected = by_position[4:8].mean() - by_position[28:].mean()
    np.testing.assert_allclose(measured["in_context"], expected, rtol=1e-4)
    np.testing.assert_allclose(TASK.loss(output, batch)[0], by_position.mean(), rtol=1e-5)


def test_amounts_may_be_schedules_and_out_of_range_is_refused():
    Text(SOURCE, length=LENGTH, vocabulary=10_000, copy=Switch(0.5, 0.0, at=10))
    with pytest.raises(InputError, match=r"Text\.copy must be a finite number from 0"):
        TASK.replace(copy=1.5)
    with pytest.raises(InputError, match="phrase_length must be at most a quarter of length"):
        TASK.replace(phrase_repeats=1.0, phrase_length=9)
    fits = TASK.replace(phrase_length=4, phrase_repeats=Switch(6.0, 0.0, at=10))
    for repeats in (7, Switch(0.0, 7.0, at=10)):
        words = "7 does not fit: at most 6 repetitions of 4 tokens fit into 32"
        with pytest.raises(InputError, match=words):
            fits.replace(phrase_repeats=repeats)
    with pytest.raises(InputError, match="batch is 2000, and there are 287"):
        drawn(TASK, 0, n=2000)
