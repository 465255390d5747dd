"""Figure 17: the layers of copying and selecting heads, and their times."""

import numpy as np
import pytest

from emergo.papers.zucchet2025 import fig5_16_17 as fig17
from emergo.training import Result


def test_where_heads_are_and_when_attention_is_half_way():
    run = fig17.FIGURE_17.runs("smoke")[0]
    step = np.arange(0, 1001, 10)
    rise = (step / 1000)[:, None, None]
    heads = {
        "copying": np.array([[0.2], [0.8]]),
        "selecting": np.array([[0.1], [0.9]]),
    }  # layers x heads
    curves = {name: 0.1 + rise * (end - 0.1) for name, end in heads.items()} | {
        "accuracy": (step >= 400).astype(float)
    }
    result = Result.measured(run, curves | {"step": step, "loss": 0.0 * step}, None, "cpu")
    assert fig17.holders(result) == {"copying": 2, "selecting": 2}
    assert fig17.half_times(result) == {
        "copying": pytest.approx(500, abs=10),
        "selecting": pytest.approx(500, abs=10),
        "accuracy": pytest.approx(395, abs=10),
    }
