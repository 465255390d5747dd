"""Head scores: definitions by loops, known heads, and agreement between array libraries."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.measure import HEAD_NAMES, head_scores

TOKENS = np.random.default_rng(0).integers(0, 4, (5, 9))
ATTENTION = np.random.default_rng(1).dirichlet(np.ones(9), (5, 2, 3, 9)).astype(np.float32)


def keys_of(name: str, tokens: np.ndarray, query: int) -> list[int]:
    """The keys that a class of heads attends to, by its definition."""
    same = [key for key in range(query) if tokens[key] == tokens[query]]
    return {
        "previous_token_head": [query - 1] if query else [],
        "duplicate_token_head": same,
        "induction_head": [key + 1 for key in same],
        "first_token_head": [0] if query else [],
    }[name]


def by_loops(name, attention, tokens, counts=None):
    length = tokens.shape[1]
    first = length - attention.shape[-2]
    values = []
    for n, sequence in enumerate(tokens):
        for query in range(first, length):
            keys = keys_of(name, sequence, query)
            if keys and (counts is None or counts[n, query - first]):
                values.append(attention[n, :, :, query - first, keys].sum(0))
    return np.mean(values, 0)


@pytest.mark.parametrize("queries", [9, 4, 1])
@pytest.mark.parametrize("name", HEAD_NAMES)
def test_scores_are_as_defined(name, queries):
    attention = ATTENTION[..., -queries:, :]
    counts = np.random.default_rng(2).random((5, queries)) < 0.7
    for mask, loops_mask in ((None, None), (counts[:, None, None], counts)):
        score = head_scores(attention, TOKENS, mask)[name]
        # Sums in fp32 in another order.
        expected = by_loops(name, attention, TOKENS, loops_mask)
        np.testing.assert_allclose(score, expected, rtol=1e-5)


def test_ideal_heads_score_1():
    tokens = np.array([[7, 5, 3, 5, 3, 7]])
    keys = [[0, 0, 1, 2, 3, 4], [0, 1, 2, 1, 2, 0], [0, 1, 2, 2, 3, 1], [0, 0, 0, 0, 0, 0]]
    scores = head_scores(np.eye(6)[None, keys], tokens)
    for head, name in enumerate(HEAD_NAMES):
        assert scores[name][head] == 1
        assert np.all(np.delete(scores[name], head) < 1)


def test_scores_without_tokens_and_without_any_key():
    assert set(head_scores(ATTENTION)) == {"previous_token_head", "first_token_head"}
    scores = head_scores(ATTENTION, np.arange(45).reshape(5, 9))
    assert scores["induction_head"].shape == (2, 3)
    assert np.isnan(scores["induction_head"]).all()
    assert np.isfinite(scores["previous_token_head"]).all()
    assert np.isnan(head_scores(np.full_like(ATTENTION, np.nan))["first_token_head"]).all()


def test_jax_numpy_and_torch_agree():
    torch = pytest.importorskip("torch")
    counts = np.random.default_rng(2).random((5, 1, 1, 9)) < 0.7
    expected = head_scores(ATTENTION, TOKENS, counts)
    in_jax = jax.jit(head_scores)(*map(jnp.asarray, (ATTENTION, TOKENS, counts)))
    in_torch = head_scores(*map(torch.from_numpy, (ATTENTION, TOKENS, counts)))
    assert isinstance(in_torch["induction_head"], torch.Tensor)
    for name in HEAD_NAMES:
        # Sums in fp32 in another order.
        np.testing.assert_allclose(in_jax[name], expected[name], rtol=1e-5)
        np.testing.assert_allclose(in_torch[name].numpy(), expected[name], rtol=1e-5)


def test_scores_need_no_jax():
    code = "import sys, emergo.core.heads; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
