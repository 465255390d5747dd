"""Train recall with repetition that is switched off, and compare it with repetition that is kept.

    python -m benchmarks.recall_dropped list
    python -m benchmarks.recall_dropped train NAME WORK SECONDS RECORDS [--tiny]
    python -m benchmarks.recall_dropped summary [RECORDS]
    python -m benchmarks.recall_dropped compare [RECORDS]

`train` needs a GPU, and works as in campaigns.py: finished runs are written at once, and the same
command goes on from there. The screen and its confirmation come with the package, and the figure
`emergo/schedule` draws them. `summary` reads these and further records (by default
results/recall-dropped), and prints the steps to 5%, 50% and 90% test accuracy, and the ratio of the
steps to 90% to those of B = 4 kept with the same pairs and seed. `compare` prints geometric means
over the confirming seeds, and their ratio to B = 4 kept: paired where B = 4 was kept with the same
seeds, and otherwise to all its runs (Welch's interval). Censored runs count with their last step.
results/expectations/recall-dropped.md says what we expect.
"""

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

import emergo as em
from emergo.papers.experiments import schedule
from emergo.store import read_records
from emergo.store.records import SHIPPED

from .campaign_parts import PatientWhenStuck
from .campaigns import Studies, main

ONCE = 1e-6  # a burst this small places the query at one pair, drawn uniformly, as in the test
FOLDER = Path(__file__).parents[1] / "results" / "recall-dropped"
MARKS = (0.05, 0.5, 0.9)
BASE = em.Config(
    em.Recall(32, 256, placement="chance"),
    em.Transformer(layers=4, heads=4, mask="causal", initial="xavier"),
    precision="bf16",
    steps=90_000,
    threshold=0.9,
    n_test=512,
)
SEEDS = schedule.CONFIRMING
BEST_AT_32 = 26_000  # the middle of the best switches with 32 pairs
POWER = 2.0  # of the number of pairs


def best_switch(pairs: int) -> int:
    """Return the step at which the rule switches bursts of 4 and 8 off."""
    return round(BEST_AT_32 * (pairs / 32) ** POWER)


def switched(burst: float, at: int, pairs: int = 32) -> em.Recall:
    ramp: Any = em.Ramp(burst, ONCE, begin=at - 1, end=at)
    return em.Recall(pairs, 256, placement="chance", burst=ramp)


def faded(burst: float, begin: int, end: int) -> em.Recall:
    ramp: Any = em.Ramp(burst, ONCE, begin=begin, end=end)
    return em.Recall(32, 256, placement="chance", burst=ramp)


def patient(pairs: int) -> em.Recall:
    burst: Any = PatientWhenStuck("loss", stuck=8.0, moving=ONCE)
    return em.Recall(pairs, 256, placement="chance", burst=burst)


def kept(burst: float, pairs: int = 32) -> em.Recall:
    return em.Recall(pairs, 256, placement="chance", burst=burst)


def study(tasks: Mapping[str, em.Task], seeds: Iterable[int], steps: int = 90_000) -> em.Study:
    config = BASE.replace(steps=steps)
    return em.Study.of(config, grid={"task": tasks}, seeds=list(seeds))


def by_switch(cells: Iterable[tuple[float, float]], pairs: int = 32) -> dict[str, em.Task]:
    """Return tasks by label, from bursts and the thousands of steps after which they end."""
    return {f"{b:g} until {at:g},000": switched(b, round(1000 * at), pairs) for b, at in cells}


def constants() -> Studies:
    """B = 4 and B = 2 kept, and no repetition, with the seeds of the confirmed schedules."""
    tasks = {"2 kept": kept(2.0), "none": em.Recall(32, 256)}
    return {
        "B = 4 kept": study({"4 kept": kept(4.0)}, [*SEEDS, 3], 150_000),
        "constants": study(tasks, SEEDS, 150_000),
    }


def screen() -> Studies:
    """What the screen left out: fades, and further seeds and switches."""
    fades = {
        f"{b:g} faded from {begin},000 to {end},000": faded(b, 1000 * begin, 1000 * end)
        for b, (begin, end) in itertools.product((4.0, 8.0), ((20, 28), (16, 32), (12, 40)))
    }
    late = [(b, at) for b in (4.0, 8.0) for at in (20, 32, 40)]
    rest = [(2.0, 32), (2.0, 36), (16.0, 24), (16.0, 28)]
    return {
        "fades": study(fades, range(4)),
        "seeds 2 and 3": study(by_switch(late), (2, 3)),
        "other switches": study(by_switch(rest), range(4)),
    }


def rule() -> Studies:
    """16 and 24 pairs with later switches than the first rule's, and the constants."""
    studies = {}
    for pairs in (24, 16):
        cells = itertools.product((2.0, 4.0), (10, 14, 20, 28))
        constants = {"4 kept": kept(4.0, pairs), "2 kept": kept(2.0, pairs)}
        tasks = by_switch(cells, pairs) | constants
        studies[f"{pairs} pairs"] = study(tasks, range(4), 150_000)
    return studies


def judge() -> Studies:
    """48 pairs: the rule, the successor of `WhenStuck`, and switches on both sides."""
    cells = [(b, best_switch(48) / 1000) for b in (4.0, 8.0)]
    first = by_switch(cells, 48) | {"4 kept": kept(4.0, 48), "patient": patient(48)}
    sides = [(4.0, best_switch(48) * share / 1000) for share in (0.6, 1.6)]
    return {
        "48 pairs": study(first, range(4), 200_000),
        "both sides": study(by_switch(sides, 48), range(4), 200_000),
    }


def large() -> Studies:
    """64 pairs: three schedules, B = 4 kept and no repetition."""
    cells = [(b, best_switch(64) / 1000) for b in (4.0, 8.0)] + [(8.0, 60)]
    tasks = by_switch(cells, 64) | {"4 kept": kept(4.0, 64), "none": em.Recall(64, 256)}
    return {"64 pairs": study(tasks, range(4), 200_000)}


def regression() -> Studies:
    """The successor of `WhenStuck` in the cells of the schedule page."""
    studies = {}
    repeat = PatientWhenStuck("loss", stuck=0.5)
    for length, dim, steps, seeds in (
        (256, 64, 20_000, 5),
        (256, 128, 50_000, 3),
        (128, 64, 20_000, 3),
        (256, 32, 20_000, 3),
    ):
        config = schedule.BASE.replace(
            task__length=length, task__dim=dim, task__repeat=repeat, steps=steps
        )
        studies[f"T = {length}, d = {dim}"] = em.Study.of(config, seeds=seeds)
    return studies


CAMPAIGNS: Mapping[str, Callable[[], Studies]] = {
    "constants": constants,
    "rule": rule,
    "judge": judge,
    "large": large,
    "regression": regression,
    "screen": screen,
}


def steps_to(curves: pd.DataFrame, mark: float) -> float:
    """Return the first evaluated step with this test accuracy; NaN if it is not reached."""
    reached = curves["step"][curves["accuracy"] >= mark]
    return float(reached.iloc[0]) if len(reached) else np.nan


RAMP = re.compile(r"Ramp\(first=([\d.]+), .*begin=(\d+), end=(\d+)\)")


def label_of(burst: str | float, placement: str) -> str:
    """Return a short text for the column `burst` of records."""
    if placement == "once":
        return "none"
    ramp = RAMP.fullmatch(str(burst))
    if ramp is None:
        return str(burst) if "(" in str(burst) else f"{float(burst):g} kept"
    first, begin, end = float(ramp[1]), int(ramp[2]), int(ramp[3])
    if end == begin + 1:
        return f"{first:g} until {end:,}"
    return f"{first:g} faded from {begin:,} to {end:,}"


def rows_of(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run of recall: the steps to each mark."""
    groups = dict(iter(curves.groupby("identity")))
    rows = []
    for run in runs.to_dict("records"):
        steps = {f"to {mark:.0%}": steps_to(groups[run["identity"]], mark) for mark in MARKS}
        burst = label_of(run["burst"], run["placement"])
        row = {"pairs": run["pairs"], "burst": burst, "seed": run["seed"], "state": run["state"]}
        rows.append(row | steps)
    return pd.DataFrame(rows)


def constant_rows() -> pd.DataFrame:
    """Return the rows of recorded runs whose burst is kept."""
    records = read_records()
    rows = []
    for burst, seed in itertools.product((1.0, 2.0, 4.0), range(3)):
        config = BASE.replace(task__burst=burst, steps=300_000)
        if burst == 1:
            config = BASE.replace(task=em.Recall(32, 256), steps=300_000)
        run = em.Run(config, seed)
        if run.identity in records:
            stored = records.read(run.identity)
            columns = stored.curves or {}
            curves = pd.DataFrame({name: columns[name] for name in ("step", "accuracy")})
            steps = {f"to {mark:.0%}": steps_to(curves, mark) for mark in MARKS}
            name = "none" if burst == 1 else f"{burst:g} kept"
            rows.append({"pairs": 32, "burst": name, "seed": seed, "state": "reached"} | steps)
    return pd.DataFrame(rows)


def recorded(folder: Path) -> pd.DataFrame:
    """Return one row per recorded run of recall, also of those that come with the package."""
    parts = []
    shipped = SHIPPED.glob("recall-*.runs.parquet")
    for path in sorted([*shipped, *folder.glob("*.runs.parquet")]):
        runs = pd.read_parquet(path)
        if "pairs" in runs:
            curves = path.with_name(path.name.replace(".runs.", ".curves."))
            parts.append(rows_of(runs, pd.read_parquet(curves)))
    return pd.concat([constant_rows(), *parts], ignore_index=True)


def ratio(steps: pd.Series, reference: pd.Series) -> str:
    """Return the ratio of geometric means of two series by seed, with its 95% interval."""
    first = steps.map(np.log)
    second = reference.map(np.log)
    same = first.index.intersection(second.index)
    if len(same) >= 3:
        difference = first[same] - second[same]
        found = stats.ttest_1samp(difference, 0)
        middle = difference.mean()
        how = f"paired, {len(same)} seeds"
    else:
        found = stats.ttest_ind(first, second, equal_var=False)
        middle = first.mean() - second.mean()
        how = "not paired"
    low, high = found.confidence_interval()
    return f"{np.exp(middle):.2f} [{np.exp(low):.2f}, {np.exp(high):.2f}] {how}"


def compare(folder: Path) -> None:
    """Print the geometric mean of each condition with the confirming seeds."""
    table = recorded(folder)
    table = table[table["pairs"] == 32].set_index("seed")
    names = [f"to {mark:.0%}" for mark in MARKS]
    references = table[table["burst"] == "4 kept"]
    for burst, rows in table[table.index >= SEEDS[0]].groupby("burst"):
        print(f"{burst}: {len(rows)} runs, {rows['to 90%'].isna().sum()} censored")
        for name in names:
            steps = rows[name].fillna(BASE.steps)
            text = f"{np.exp(np.log(steps).mean()):,.0f}, {steps.min():,.0f} to {steps.max():,.0f}"
            print(f"    {name}: {text}; over 4 kept {ratio(steps, references[name])}")


def summary(folder: Path) -> None:
    table = recorded(folder)
    by_run = table.set_index(["pairs", "seed"])
    same = by_run["to 90%"][by_run["burst"] == "4 kept"].rename("kept")
    table = table.join(same, on=["pairs", "seed"])
    table["over 4 kept"] = table["to 90%"] / table.pop("kept")
    print(table.sort_values(["pairs", "burst", "seed"]).to_string(index=False))


if __name__ == "__main__":
    reports = {"summary": summary, "compare": compare}
    if report := reports.get((sys.argv[1:2] or [""])[0]):
        report(Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER)
    else:
        main(CAMPAIGNS, sys.argv[1:], __doc__ or "")
