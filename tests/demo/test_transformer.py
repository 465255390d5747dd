"""The Transformer of the demo."""

import json

import numpy as np
import pytest

from emergo.demo._transformer import Watched, watch_transformer


@pytest.mark.slow
def test_attention_becomes_sparse_on_the_relevant_token():
    told: list[float] = []
    watched = watch_transformer(told.append, sequences=6)
    np.testing.assert_allclose(watched.maps.sum(-1), 1, atol=1e-4)  # fp32 weights of 16 tokens
    assert watched.share[0] == pytest.approx(1 / 16, abs=0.02), "nearly uniform at first"
    assert watched.share[-1] > 0.9
    assert watched.loss[-1] < 0.1 < watched.loss[1]
    assert watched.steps[0] == 0
    assert watched.steps[-1] > watched.plateau
    assert told == sorted(told)
    assert len(json.dumps(watched.data())) < 100_000


def test_the_share_belongs_to_the_head_with_the_largest_attention_at_the_end():
    maps = np.zeros((2, 2, 1, 4))
    maps[:, 0] = 0.25
    maps[0, 1] = 0.25
    maps[1, 1, 0, 2] = 1.0
    watched = Watched(np.array([0, 25]), np.array([1.0, 0.0]), maps, np.array([2]), 20.0)
    assert watched.share.tolist() == [0.25, 1.0]
    assert watched.data()["maps"][1][1] == [[0, 0, 100, 0]]
