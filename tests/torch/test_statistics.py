"""Compare statistics of attention with known values and with loops."""

import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

from emergo.torch._scores import Scores
from emergo.torch._statistics import head_statistics


@hypothesis.given(
    st.integers(0, 1000),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([-math.inf, -3.4e38, -1e9, -65504.0]),
)
def test_against_loops(seed, queries, length, mask_value):
    """Random masks in which every query sees itself, with different numbers for hidden keys."""
    generator = torch.Generator().manual_seed(seed)
    queries = min(queries, length)
    raw = 3 * torch.randn(2, 2, queries, length, generator=generator)
    visible = torch.rand(2, 1, queries, length, generator=generator) < 0.6
    tokens = torch.randint(3, (4, length), generator=generator)
    own = range(length - queries, length)
    for i, position in enumerate(own):
        visible[:, :, i, position] = True
    values = head_statistics(Scores(torch.where(visible, raw, mask_value), 4, length), tokens)
    for head in range(2):
        rows = {name: [] for name in values}
        for n in range(2):
            for i, position in enumerate(own):
                keys = [k for k in range(length) if visible[n, 0, i, k]]
                weights = dict(zip(keys, raw[n, head, i, keys].softmax(-1).tolist(), strict=True))
                rows["entropy"].append(-sum(w * math.log(w) for w in weights.values()))
                rows["largest"].append(max(weights.values()))
                if position:
                    rows["previous"].append(weights.get(position - 1, 0))
                alike = [k for k in keys if k != position and tokens[n, k] == tokens[n, position]]
                if alike:
                    rows["same"].append(sum(weights[k] for k in alike))
                if len(keys) > 1:
                    rows["score_scale"].append(float(raw[n, head, i, keys].std(correction=0)))
        for name, each in rows.items():
            expected = np.mean(each) if each else math.nan
            assert float(values[name][head]) == pytest.approx(
                expected, rel=1e-4, abs=1e-5, nan_ok=True
            ), name


def test_cross_attention_has_no_previous_token():
    values = head_statistics(
        Scores(torch.zeros(2, 1, 3, 7), 2, 3), torch.zeros(2, 7, dtype=torch.long)
    )
    assert set(values) == {"entropy", "largest", "score_scale"}
    np.testing.assert_allclose(values["entropy"], math.log(7), rtol=1e-6)


def test_nan_scores_give_nan():
    values = head_statistics(Scores(torch.full((1, 1, 2, 2), math.nan), 1, 2))
    assert all(value.isnan().all() for value in values.values())
