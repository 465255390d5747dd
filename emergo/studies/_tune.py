"""Cells of a table of runs, and the best value of a tuned axis in each (zucchet2025, D.3)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd


def cell_means(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """One row per cell: the mean plateau of its runs. A censored one counts as it stands, a failed one as infinite."""
    filled = table.assign(plateau=table["plateau"].where(table["state"] != "failed", np.inf))
    grouped = filled.groupby(list(by), sort=True)
    return grouped.agg(plateau=("plateau", "mean"), censored=("censored", "sum"), runs=("plateau", "size")).reset_index()


def best_of(table: pd.DataFrame, by: Sequence[str], tuned: str = "learning_rate") -> pd.DataFrame:
    """The runs of the value of a tuned axis with the shortest mean plateau in each cell; `by` may be empty."""
    means = cell_means(table, [*by, tuned])
    rows = means.groupby(list(by))["plateau"].idxmin() if by else [means["plateau"].idxmin()]
    return table.merge(means.loc[rows, [*by, tuned]], on=[*by, tuned])
