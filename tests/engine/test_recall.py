"""Training on associative recall: an induction head forms, and the same runs come out alone, batched and resumed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.engine import Config, Optimizer, Run, circuits, train
from emergo.models import Transformer
from emergo.studies import Records, Result, record_tables
from emergo.tasks import Recall, RecallBatch

from .laws import check_going_on, check_records

BASE = Config(
    Recall(2, 6),
    Transformer(layers=2, heads=2, width=16, mask="causal"),
    Optimizer(learning_rate=5e-3),
    batch=16,
    tests=64,
    precision="fp32",
    threshold=0.9,
    steps=100,
)


def run_of(seed, **changes):
    return Run(dataclasses.replace(BASE, task=dataclasses.replace(BASE.task, **changes)), seed)


RUNS = [
    run_of(0, burst=1.5, placement="chance"),
    run_of(1, vocabulary=4, burst=1.0, placement="chance"),
    run_of(2, repeat=0.5, placement="chance"),
]


@pytest.fixture(scope="module")
def together():
    return train(RUNS)


@pytest.mark.slow
def test_a_run_is_the_same_alone_and_among_others(together):
    beside = together[1]  # the one that is padded
    (alone,) = train([beside.run])
    assert set(beside.curves) == set(alone.curves)
    np.testing.assert_array_equal(beside.curves["step"], alone.curves["step"])
    # Rounding errors of 1e-7 grow in a hundred steps; an accuracy may differ by an answer or two of 64.
    np.testing.assert_allclose(beside.curves["loss"], alone.curves["loss"], rtol=1e-2)
    np.testing.assert_allclose(beside.curves["selecting"], alone.curves["selecting"], atol=1e-2)
    np.testing.assert_allclose(beside.curves["accuracy"], alone.curves["accuracy"], atol=0.05)


@pytest.mark.slow
def test_what_is_seen(together):
    for history in together:
        count = len(history.curves["step"])
        for name in ("copying", "selecting", "previous", "induction", "entropy"):
            assert history.curves[name].shape == (count, 2, 2)
            assert np.isfinite(history.curves[name]).all()
        assert history.curves["accuracy_repeated"].shape == (count,)
        assert history.curves["loss"][0] == pytest.approx(np.log(history.run.config.task.inputs), rel=0.5)


@pytest.mark.slow
def test_records_give_back_what_was_seen(together):
    results = [Result.of(history) for history in together]
    records = Records(*record_tables(results, [run.identity for run in RUNS]))
    check_records(records, results)


def test_the_parts_of_an_induction_head():
    """Maps made by hand: the first layer looks at the token before, the second at what followed the query."""
    data = Recall(3, 8).sample(jax.random.key(0), 32)
    length, rows = data.tokens.shape[1], jnp.arange(32)
    before = jnp.broadcast_to(jnp.eye(length, k=-1).at[0, 0].set(1), (32, length, length))
    value = 2 * jnp.argmax(data.relevant, 1) + 1
    select = jnp.zeros((32, length, length)).at[rows, -1, value].set(1)
    maps = jnp.stack([before, select], 1)[:, :, None]
    seen = circuits(maps, data)
    np.testing.assert_allclose(seen["copying"][:, 0], [1, 0], atol=1e-6)
    by_chance = np.asarray(data.relevant)[:, -1].mean()  # the token before the query is its value
    np.testing.assert_allclose(seen["selecting"][:, 0], [by_chance, 1], atol=1e-6)
    np.testing.assert_allclose(seen["previous"][0, 0], 1, atol=1e-6)
    # By a plain loop over tokens that have occurred before.
    total, count = np.zeros(2), 0
    for n, tokens in enumerate(np.asarray(data.tokens)):
        for t in range(length):
            earlier = [s for s in range(t) if tokens[s] == tokens[t]]
            count += bool(earlier)
            total += sum((np.asarray(maps[n, :, 0, t, s + 1]) for s in earlier), np.zeros(2))
    np.testing.assert_allclose(seen["induction"][:, 0], total / count, rtol=1e-5)


def test_relevant_pairs_alone_are_read_off():
    """A batch of one: the relevant pair is the second, so its value is token 3 and its key token 2."""
    data = RecallBatch(jnp.array([[5, 1, 3, 2, 3]]), jnp.array([2]), jnp.array([[False, True]]))
    maps = jnp.zeros((1, 1, 1, 5, 5)).at[0, 0, 0, 3, 2].set(0.25).at[0, 0, 0, 4, 3].set(0.75)
    seen = {name: float(values[0, 0]) for name, values in circuits(maps, data).items()}
    # Two of four neighbours carry 0.25 and 0.75; only the last token has occurred before, followed by token 3.
    assert seen == pytest.approx({"copying": 0.25, "selecting": 0.75, "previous": 0.25, "induction": 0.75})


@pytest.mark.slow
def test_an_interrupted_call_goes_on_where_it_was(together, tmp_path):
    check_going_on(together, 100, tmp_path)
