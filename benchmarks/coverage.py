"""Measure the coverage of every kind of 95% interval on synthetic data with a known truth.

    python benchmarks/coverage.py [FOLDER]

It writes FOLDER/coverage.csv (by default results/coverage.csv), one row per kind of interval and
setting: the share of data sets whose interval contains the truth, and the share that have one.
Cells `miss` the law by normal numbers of this size on logarithms; seeds scatter by 0.1. It takes
about five minutes on one CPU core.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from scipy.stats import pearsonr

from emergo.measure import _laws, boundary_of, fit_law, fit_offset, mean_ratio, paired_ratio

RESULTS = Path(__file__).parents[1] / "results"
NOISE = 0.1
LENGTHS = (32, 64, 128, 256)
GRIDS = {
    16: (LENGTHS, (16, 32, 64, 128)),
    12: (LENGTHS, (16, 32, 64)),
    6: ((32, 64, 128), (16, 64)),
    3: ((32, 64, 128), (1,)),
}
TRUTH = {"length": 0.8, "dim": 1.3}
Ends = tuple[float, float]
Draw = Callable[[np.random.Generator], Iterator[tuple[Ends, float]]]


def runs(rng: np.random.Generator, cells: int, seeds: int, miss: float) -> pd.DataFrame:
    """Draw the plateaus of a power law that its cells miss."""
    lengths, dims = GRIDS[cells]
    grid = [(length, dim, seed) for length in lengths for dim in dims for seed in range(seeds)]
    table = pd.DataFrame(grid, columns=["length", "dim", "seed"])
    off = miss * rng.normal(size=cells).repeat(seeds) + NOISE * rng.normal(size=len(table))
    clean = sum(power * np.log(table[name]) for name, power in TRUTH.items())
    return table.assign(plateau=np.exp(clean + off))


def law(cells: int, seeds: int, miss: float, censored: float = 0.0) -> Draw:
    terms = ["length", "dim"] if cells > 3 else ["length"]

    def draw(rng: np.random.Generator) -> Iterator[tuple[Ends, float]]:
        table = runs(rng, cells, seeds, miss)
        if censored:
            cap = float(table["plateau"].quantile(1 - censored))
            late = table["plateau"] > cap
            table = table.assign(censored=late, plateau=table["plateau"].clip(upper=cap))
        best = fit_law(table, x=terms, resamples=400).best
        for name in terms:
            yield best.ci95[name], TRUTH[name]

    return draw


def dropped(cells: int, seeds: int, share: float) -> Draw:
    """The same law from the finished runs alone."""

    def draw(rng: np.random.Generator) -> Iterator[tuple[Ends, float]]:
        table = runs(rng, cells, seeds, 0.0)
        rows = table[table["plateau"] <= table["plateau"].quantile(1 - share)]
        fitted = fit_law(rows, resamples=400)
        for name, power in TRUTH.items():
            yield fitted.ci95[name], power

    return draw


def offset(miss: float) -> Draw:
    def draw(rng: np.random.Generator) -> Iterator[tuple[Ends, float]]:
        lengths = (32, 64, 128, 256, 512)
        grid = [(T, d, s) for T in lengths for d in (16, 32, 64, 128) for s in range(5)]
        table = pd.DataFrame(grid, columns=["length", "dim", "seed"])
        clean = 3 * table["dim"] + 0.2 * table["dim"] ** 1.3 * table["length"]
        off = miss * rng.normal(size=20).repeat(5) + NOISE * rng.normal(size=len(table))
        yield fit_offset(table.assign(plateau=clean * np.exp(off)), resamples=100).ci95["gamma"], 1

    return draw


def boundary(seeds: int) -> Draw:
    def draw(rng: np.random.Generator) -> Iterator[tuple[Ends, float]]:
        yield boundary_of(np.exp(3 + NOISE * rng.normal(size=seeds)))[1:3], np.exp(3)

    return draw


def ratio(seeds: int, shared: float) -> Draw:
    """Two conditions whose logarithms correlate by `shared` over seeds."""

    def draw(rng: np.random.Generator) -> Iterator[tuple[Ends, float]]:
        both = rng.multivariate_normal([1, 0], [[1, shared], [shared, 1]], seeds)
        slow, fast = np.exp(NOISE * both + [1, 0]).T
        yield paired_ratio(pd.Series(slow), pd.Series(fast))[1:3], np.exp(1 + NOISE)

    return draw


def ratio_of_cells(cells: int, seeds: int, miss: float) -> Draw:
    def draw(rng: np.random.Generator) -> Iterator[tuple[Ends, float]]:
        label = np.arange(cells).repeat(seeds)
        logs = miss * rng.normal(size=cells)[label] + NOISE * rng.normal(size=len(label))
        yield mean_ratio(np.exp(logs), label)[1:3], 1

    return draw


def correlation(seeds: int) -> Draw:
    def draw(rng: np.random.Generator) -> Iterator[tuple[Ends, float]]:
        x, y = rng.multivariate_normal([0, 0], [[1, -0.7], [-0.7, 1]], seeds).T
        yield tuple(pearsonr(x, y).confidence_interval()), -0.7

    return draw


def measure(draw: Draw, sets: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found = [each for _ in range(sets) for each in draw(rng)]
    known = [(low, high, truth) for (low, high), truth in found if np.isfinite(high - low)]
    held = float(np.mean([low <= truth <= high for low, high, truth in known]))
    return {"sets": sets, "coverage": round(held, 3), "have one": round(len(known) / len(found), 3)}


def rows() -> Iterator[dict[str, Any]]:
    for cells in GRIDS:
        for seeds in (3, 5):
            for miss in (0.0, 0.05, 0.1, 0.2):
                about = {"cells": cells, "seeds": seeds, "miss": miss}
                draw = law(**about)
                yield {"interval": "exponent"} | about | measure(draw, 300)
                with mock.patch.object(_laws, "cells_spread_more", return_value=False):
                    seen = measure(draw, 300)
                yield {"interval": "exponent, seeds resampled always"} | about | seen
    for share in (0.2, 0.4):
        for miss in (0.0, 0.1):
            about = {"cells": 12, "seeds": 5, "miss": miss, "censored": share}
            yield {"interval": "exponent, with censored runs"} | about | measure(law(**about), 100)
        about = {"cells": 12, "seeds": 5, "miss": 0.0, "censored": share}
        seen = measure(dropped(12, 5, share), 100)
        yield {"interval": "exponent, censored runs dropped"} | about | seen
    for miss in (0.0, 0.1):
        about = {"cells": 20, "seeds": 5, "miss": miss}
        yield {"interval": "exponent beside an offset"} | about | measure(offset(miss), 40)
    for seeds in (3, 5):
        yield {"interval": "end of a plateau", "seeds": seeds} | measure(boundary(seeds), 4000)
        for shared in (0.0, 0.9):
            name = f"paired ratio, seeds correlate by {shared:g}"
            yield {"interval": name, "seeds": seeds} | measure(ratio(seeds, shared), 2000)
    for cells in (3, 6):
        for miss in (0.0, 0.1, 0.3):
            about = {"cells": cells, "seeds": 5, "miss": miss}
            yield {"interval": "ratio over cells"} | about | measure(ratio_of_cells(**about), 1000)
    yield {"interval": "correlation", "seeds": 64} | measure(correlation(64), 2000)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    found = []
    for row in rows():
        found.append(row)
        print(row, flush=True)
    pd.DataFrame(found).to_csv(folder / "coverage.csv", index=False)


if __name__ == "__main__":
    main()
