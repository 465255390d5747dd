"""Figure 15: SGD and Adam are compared in cells in which both emerge."""

import pandas as pd
import pytest

from emergo.papers.zucchet2025.fig13_15 import OPTIMIZER_LAWS, gap_of


def cells(plateaus, censored=()):
    table = pd.DataFrame([{"dim": d, "length": t, "plateau": p} for (d, t), p in plateaus.items()])
    table["state"] = ["censored" if cell in censored else "reached" for cell in plateaus]
    return pd.concat([table, table], ignore_index=True)  # two seeds per cell


def test_the_hardest_cell_without_a_censored_run_counts():
    adam = cells({(16, 32): 100.0, (16, 64): 200.0, (32, 64): 400.0})
    sgd = cells(
        {(16, 32): 3000.0, (16, 64): 8000.0, (32, 64): 9000.0, (64, 64): 9000.0},
        {(32, 64), (64, 64)},
    )
    (check,) = gap_of({"sgd": sgd, "adam": adam})
    assert "d = 16, T = 64" in check.name
    assert check.measured == pytest.approx(40)
    laws = [
        p.C * 16 ** p.exponents["dim"] * 64 ** p.exponents["length"]
        for p in OPTIMIZER_LAWS.values()
    ]
    assert check.published == pytest.approx(laws[0] / laws[1])
    assert check.holds
    sgd.loc[:, "state"] = "failed"
    assert gap_of({"sgd": sgd, "adam": adam}) == []
