"""Laws fitted to a table in a file."""

import numpy as np
import pandas as pd
import pytest

from emergo.measure import fit_table


def test_fit_table_writes_law_and_plot(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(T, d) for T in (16, 32, 64) for d in (4, 8) for _ in range(3)]
    table = pd.DataFrame(rows, columns=["length", "dim"])
    table["plateau"] = (
        3 * table["length"] * np.sqrt(table["dim"]) * np.exp(0.05 * rng.normal(size=len(table)))
    )
    table.assign(censored=table["plateau"] > 400).to_csv(tmp_path / "runs.csv", index=False)
    law = fit_table(tmp_path / "runs.csv", "plateau", ["dim", "length"], {}, tmp_path / "out", 200)
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == [
        "runs.law.json",
        "runs.law.png",
        "runs.law.svg",
    ]
    assert law["exponents"]["length"] == pytest.approx(1, abs=0.15)
    assert law["with_censored"]["exponents"]["length"] == pytest.approx(1, abs=0.1)
    assert law["censored"] > 0
