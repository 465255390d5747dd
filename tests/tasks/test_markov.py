"""The distribution of the Markov chain, with exact references for small vocabularies."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from emergo.core.contract import Batch, Output, Spec
from emergo.core.errors import InputError
from emergo.tasks import Groups, MarkovChain, MarkovRegression, divergence

from .test_groups import groups


def entropy(log_probs):
    return stats.entropy(np.exp(log_probs), axis=-1)


def dense(task, truth, history, keep=None):
    """Return the distribution of the next token by the paper's formula, in float64."""
    total = np.zeros(task.vocabulary)
    chosen = task.groups.ranking[:keep]
    for k in chosen:
        pooled = np.zeros(task.vocabulary)
        for i, start in enumerate(
            range(task.groups.starts[k], task.groups.starts[k] + task.groups.spans[k])
        ):
            alpha = 1.0 if task.groups.weights is None else task.groups.weights[k][i]
            pooled += alpha * np.eye(task.vocabulary)[history[-1 - start]]
        total += np.asarray(truth.maps[k], np.float64) @ pooled
    weights = np.exp((total - total.max()) / task.temperature)
    return weights / weights.sum()


def loss(task, tokens, log_probs):
    """Return the mean loss of predictions."""
    return float(
        task.loss(Output(log_probs), Batch(tokens[:, :-1], tokens[:, task.given :])).mean()
    )


@pytest.mark.slow
@settings(max_examples=6)
@given(groups(most=3), st.integers(0, 100), st.floats(0.2, 2.0))
def test_teacher_and_references_equal_the_formula(options, seed, temperature):
    one = Groups(*options)
    task = MarkovChain(one, vocabulary=4, temperature=temperature, generated=2)
    truth = task.truth(jax.random.key(seed))
    tokens = jnp.asarray(np.random.default_rng(seed).integers(4, size=(3, task.length)), jnp.int32)
    for keep in (None, seed % (one.count + 1)):
        found = np.exp(np.asarray(task.teacher(truth, tokens, keep)))
        for row, sequence in zip(found, np.asarray(tokens), strict=True):
            for t in range(2):
                expected = dense(task, truth, sequence[: one.window + t], keep)
                np.testing.assert_allclose(
                    row[t], expected, rtol=2e-4, atol=1e-6
                )  # logits of some tens in fp32


@pytest.mark.parametrize(
    "one",
    [
        Groups((1, 1), 1.5, strongest="far"),
        Groups((2, 2), 2.0, stride=1, weights=((0.7, 0.3), (0.4, 0.6))),
    ],
)
def test_sequences_have_the_probabilities_of_the_chain(one):
    """Enumerate all sequences: chi-square test of 40,000 draws, exact entropy and divergences."""
    task = MarkovChain(one, vocabulary=3, temperature=0.8, generated=2)
    truth = task.truth(jax.random.key(5))
    n = 40_000
    window = one.window
    everything = np.array(list(itertools.product(range(3), repeat=task.length)))
    probability = np.full(len(everything), 3.0**-window)
    exact_entropy = 0.0
    exact_kl = np.zeros(one.count)
    for i, sequence in enumerate(everything):
        for t in range(2):
            probability[i] *= dense(task, truth, sequence[: window + t])[sequence[window + t]]
    assert probability.sum() == pytest.approx(1)
    for sequence, p in zip(everything, probability, strict=True):
        for t in range(2):
            full = dense(task, truth, sequence[: window + t])
            exact_entropy += p * stats.entropy(full) / 2
            for k in range(one.count):
                exact_kl[k] += (
                    p * stats.entropy(dense(task, truth, sequence[: window + t], k + 1), full) / 2
                )
    drawn = task.sample(jax.random.key(6), n, truth)
    code = np.asarray(drawn) @ 3 ** np.arange(task.length)[::-1]
    counts = np.bincount(code, minlength=len(everything))
    assert stats.chisquare(counts, probability * n).pvalue > 1e-3
    # Means over all sequences, weighted by their probabilities, are exact.
    tokens = jnp.asarray(everything, jnp.int32)
    full = task.teacher(truth, tokens)
    assert float((entropy(full).mean(1) * probability).sum()) == pytest.approx(
        exact_entropy, rel=1e-5
    )
    found = [
        float((divergence(r, full).mean(1) * probability).sum())
        for r in task.references(truth, tokens)
    ]
    np.testing.assert_allclose(found, exact_kl, rtol=1e-4, atol=1e-6)
    # The loss of the teacher is its entropy. 40,000 draws have a standard error below 0.004.
    assert loss(task, drawn, task.teacher(truth, drawn)) == pytest.approx(exact_entropy, abs=0.02)


def test_the_maps_are_orthogonal_and_scaled_and_uniform():
    task = MarkovChain()
    maps = np.asarray(task.truth(jax.random.key(0)).maps, np.float64)
    for one, strength in zip(maps, task.groups.strengths, strict=True):
        np.testing.assert_allclose(one.T @ one, strength**2 * np.eye(50), atol=2e-5)
    # A uniform orthogonal 2 by 2 matrix has uniform columns, and both determinants are equally
    # likely.
    many = jax.vmap(MarkovChain(Groups((1,)), 2).truth)(
        jax.random.split(jax.random.key(1), 2000)
    ).maps[:, 0]
    angle = np.arctan2(*np.asarray(many[:, ::-1, 0]).T[::-1])
    assert stats.kstest(angle / (2 * np.pi) % 1, "uniform").pvalue > 1e-3
    assert stats.binomtest(int((np.linalg.det(np.asarray(many)) > 0).sum()), 2000).pvalue > 1e-3


def test_check_values_of_the_papers_setting():
    """Ranges over draws of the maps, as published for [2, 2, 2] and m = 1.7."""
    task = MarkovChain()
    truth = task.truth(jax.random.key(0))
    tokens = task.sample(jax.random.key(1), 1000, truth)
    full = task.teacher(truth, tokens)
    uniform = task.teacher(truth, tokens, 0)
    np.testing.assert_allclose(uniform, -np.log(50), rtol=1e-6)
    one, two, nothing = [float(divergence(r, full).mean()) for r in task.references(truth, tokens)]
    assert 0.5 < float(entropy(full).mean()) < 0.65
    assert one == pytest.approx(2.8, abs=0.2)
    assert two == pytest.approx(0.68, abs=0.04)
    assert nothing == 0
    assert float(divergence(full, uniform).mean()) == pytest.approx(3.3, abs=0.07)


def test_divergence_is_zero_only_at_itself():
    p = jnp.log(jnp.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]))
    np.testing.assert_array_equal(divergence(p, p), 0)
    expected = [stats.entropy(np.exp(a), np.exp(b)) for a, b in zip(p, p[::-1], strict=True)]
    np.testing.assert_allclose(divergence(p, p[::-1]), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "one", [Groups((1, 2), 2.0), Groups((2, 2), 1.5, "far", 1, ((0.7, 0.3), (0.5, 0.5)))]
)
def test_the_regression_is_linear_in_the_last_tokens(one):
    task = MarkovRegression(one, dim=3, length=6)
    truth = task.truth(jax.random.key(0))
    maps = np.asarray(truth.maps).reshape(one.count, -1)
    np.testing.assert_allclose(maps @ maps.T, np.diag(one.strengths**2), atol=1e-5)
    data = task.batch(jax.random.key(1), 4, truth)
    assert data.inputs.shape == (4, 6, 3)
    expected = np.zeros((4, 3))
    for k in range(one.count):
        for lag in range(one.window):
            expected += (
                one.mixing[k, lag]
                * np.asarray(data.inputs)[:, 5 - lag]
                @ np.asarray(truth.maps[k]).T
            )
    np.testing.assert_allclose(data.target, expected, rtol=1e-5, atol=1e-5)
    lags = 5 - np.arange(one.window)
    np.testing.assert_array_equal(
        np.asarray(data.relevant)[:, lags], np.broadcast_to(one.members.any(0), (4, one.window))
    )
    assert np.asarray(data.relevant).sum() == 4 * one.members.any(0).sum()
    assert MarkovRegression(one, dim=3).tokens == one.window
    np.testing.assert_allclose(task.loss(Output(data.target + 2), data), 6, rtol=1e-5)


def test_a_batch_is_the_sequences_without_their_last_token():
    task = MarkovChain(Groups((1, 2)), 5, generated=4, prefix=6)
    truth = task.truth(jax.random.key(0))
    tokens = task.sample(jax.random.key(1), 7, truth)
    batch = task.batch(jax.random.key(1), 7, truth)
    np.testing.assert_array_equal(batch.inputs, tokens[:, :-1])
    np.testing.assert_array_equal(batch.target, tokens[:, 6:])
    np.testing.assert_array_equal(task.sequences(batch), tokens)
    assert task.spec == Spec(length=9, inputs=5, outputs=5, answers=4)
    expected = jax.random.fold_in(jax.random.fold_in(jax.random.key(2), 1), 30)
    np.testing.assert_array_equal(
        task.data_key(jax.random.key(2), 30), jax.random.key_data(expected)
    )


def test_metrics_and_probes_compare_with_the_teacher():
    task = MarkovChain(Groups((1, 2), 2.0), 5, generated=4)
    truth = task.truth(jax.random.key(0))
    batch = task.batch(jax.random.key(1), 7, truth)
    tokens = task.sequences(batch)
    logits = jax.random.normal(jax.random.key(2), (7, 4, 5))
    student = np.asarray(jax.nn.log_softmax(logits, -1), np.float64)
    teacher = np.array(
        [[dense(task, truth, row[: 3 + t]) for t in range(4)] for row in np.asarray(tokens)]
    )
    metrics = task.metrics(Output(logits), batch, truth)
    expected = (teacher * (np.log(teacher) - student)).sum(-1).mean(-1)
    np.testing.assert_allclose(
        metrics["kl_teacher"], expected, rtol=1e-3
    )  # probabilities near 1 in fp32
    chosen = np.take_along_axis(np.log(teacher), np.asarray(batch.target)[..., None], -1)[..., 0]
    np.testing.assert_allclose(metrics["teacher_loss"], -chosen.mean(-1), rtol=1e-3)
    references, lags = task.probes()
    divergences = references(None, Output(logits), batch, truth, 0)["kl_references"]
    assert divergences.shape == (2,)
    assert float(divergences[-1]) == pytest.approx(float(metrics["kl_teacher"].mean()), rel=1e-5)
    assert lags.reads == ("layers.*.pattern",)
    # Layer 1 attends to the token before the query.
    patterns = [jnp.broadcast_to(jnp.eye(6, k=-k), (7, 2, 6, 6)) for k in range(2)]
    taps = {f"layers.{i}.pattern": pattern for i, pattern in enumerate(patterns)}
    by_lag = lags(None, Output(logits, taps=taps), batch, truth, 0)["attention_by_lag"]
    np.testing.assert_array_equal(by_lag, np.broadcast_to(np.eye(2, 3)[:, None], (2, 2, 3)))
    assert lags(None, Output(logits), batch, truth, 0) == {}


def test_runs_of_one_program_may_differ_in_importance():
    def drawn(task):
        truth = task.truth(jax.random.key(0))
        return truth.maps, task.sample(jax.random.key(1), 5, truth)

    tasks = [MarkovChain(Groups((1, 2), m), 5, generated=4) for m in (1.0, 1.7, 3.0)]
    stacked = jax.tree.map(
        lambda *leaves: jnp.stack([jnp.float32(leaf) for leaf in leaves]), *tasks
    )
    maps, tokens = jax.jit(jax.vmap(drawn))(stacked)
    for task, map_, sequence in zip(tasks, maps, tokens, strict=True):
        alone = drawn(task)
        np.testing.assert_allclose(map_, alone[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(sequence, alone[1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MarkovChain(temperature=0.0), "MarkovChain.temperature must be above 0, got 0.0"),
        (lambda: MarkovChain(prefix=2), "MarkovChain.prefix must be at least 6, got 2"),
        (lambda: MarkovRegression(length=4), "MarkovRegression.length must be at least 6, got 4"),
        (lambda: MarkovRegression(dim=1), "MarkovRegression.dim 1 is too small for 3 orthogonal"),
        (lambda: MarkovChain(vocabulary=20, maps="published"), "needs 3 groups and vocabulary 50"),
        (
            lambda: MarkovChain(Groups((2, 2)), maps="published"),
            "needs 3 groups and vocabulary 50",
        ),
    ],
)
def test_wrong_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_longer_prefix_changes_only_the_tokens_that_are_read():
    short = MarkovChain(Groups((1, 2)), vocabulary=4, generated=3)
    long = MarkovChain(Groups((1, 2)), vocabulary=4, generated=3, prefix=8)
    assert (short.given, short.length, long.given, long.length) == (3, 6, 8, 11)
    truth = long.truth(jax.random.key(0))
    tokens = long.sample(jax.random.key(1), 5, truth)
    assert tokens.shape == (5, 11)
    recent = tokens[:, 8 - 3 :]
    student = short.teacher(truth, recent, keep=1)
    np.testing.assert_array_equal(long.teacher(truth, tokens), short.teacher(truth, recent))
    assert loss(long, tokens, student) == loss(short, recent, student)
    # Twenty thousand generated sequences have the teacher's entropy on average.
    many = long.sample(jax.random.key(2), 20_000, truth)
    expected = float(entropy(long.teacher(truth, many)).mean())
    assert loss(long, many, long.teacher(truth, many)) == pytest.approx(expected, abs=0.02)


def test_signals_equal_exact_correlations():
    task = MarkovChain(Groups((1, 1), 2.0), vocabulary=4, temperature=0.5, generated=1, prefix=5)
    truth = task.truth(jax.random.key(3))
    contexts = np.array(list(itertools.product(range(4), repeat=2)))  # oldest first
    expected = []
    for lag in range(2):
        met = np.zeros((4, 4))
        for one in contexts:
            met[:, one[-1 - lag]] += dense(task, truth, one) / len(contexts)
        expected.append(np.linalg.norm(met - met.mean(1, keepdims=True)))
    found = task.signals(truth, task.sample(jax.random.key(4), 40_000, truth))
    # An entry is a mean of 20,000 numbers below 1, so the signal has an error of about 1%.
    np.testing.assert_allclose(found, expected, rtol=0.04)
    assert expected[0] > 1.3 * expected[1]


def test_the_published_maps():
    """All seeds have the same orthogonal maps, with the published losses 0.51, 0.30 and 0.25."""
    for one, loss_of_teacher in (
        (Groups(), 0.51),
        (Groups((4, 4, 4)), 0.30),
        (Groups((8, 4, 2), 2.5, strongest="far"), 0.25),
    ):
        task = MarkovChain(one, maps="published")
        truth, same = (task.truth(jax.random.key(seed)) for seed in (0, 1))
        np.testing.assert_array_equal(truth.maps, same.maps)
        orthogonal = np.asarray(truth.maps) / np.asarray(one.strengths)[:, None, None]
        np.testing.assert_allclose(
            orthogonal @ orthogonal.transpose(0, 2, 1), np.tile(np.eye(50), (3, 1, 1)), atol=1e-5
        )
        tokens = task.sample(jax.random.key(2), 3000, truth)
        assert loss(task, tokens, task.teacher(truth, tokens)) == pytest.approx(
            loss_of_teacher, abs=0.02
        )
