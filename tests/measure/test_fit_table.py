"""Laws fitted to a table in a file."""

import pytest

from emergo.measure import fit_table

from .synthetic import censor, synthetic


def test_fit_table_writes_law_and_plot(tmp_path):
    censor(synthetic(0, noise=0.05), 0.2).to_csv(tmp_path / "runs.csv", index=False)
    law = fit_table(tmp_path / "runs.csv", "plateau", ["dim", "length"], {}, tmp_path / "out", 200)
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == [
        "runs.law.json",
        "runs.law.png",
        "runs.law.svg",
    ]
    assert law["exponents"]["length"] == pytest.approx(0.8, abs=0.15)
    assert law["with_censored"]["exponents"]["length"] == pytest.approx(0.8, abs=0.1)
    assert law["censored"] > 0
