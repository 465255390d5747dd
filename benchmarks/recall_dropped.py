"""Train recall with repetition that is switched off, and compare it with repetition that is kept.

    python benchmarks/recall_dropped.py train OUT_FOLDER SECONDS [PART]
    python benchmarks/recall_dropped.py summary [FOLDER]

`train` needs a GPU. It trains the runs of a part together and writes them as records (outcomes and
curves) into OUT_FOLDER when the time is up or all have ended; unfinished runs are lost. `summary`
reads records (by default results/recall-dropped) and prints the steps to 5%, 50% and 90% test
accuracy, and the ratio of the steps to 90% to those of B = 4 kept with the same seed.
"""

import contextlib
import itertools
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

import emergo as em
from emergo.store import read_records
from emergo.store.records import write_records
from emergo.study.results import record_tables
from emergo.training import OutOfTime, Result

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
# Bursts, the thousands of steps after which they end, and seeds.
PARTS = {
    "first": (
        {8.0: (12, 16, 20, 24, 28, 32, 40), 4.0: (12, 16, 20, 24, 28, 32, 40)}
        | {2.0: (20, 28, 40), 16.0: (12, 16, 20)},
        (0, 1),
    ),
    "second": ({8.0: (24, 28), 4.0: (24, 28)}, (2, 3)),
}


def runs_of(part: str) -> list[em.Run]:
    bursts, seeds = PARTS[part]
    switches = [
        em.Ramp(burst, ONCE, begin=1000 * at - 1, end=1000 * at)
        for burst, times in bursts.items()
        for at in times
    ]
    configs = [BASE.replace(task__burst=switch) for switch in switches]
    return [em.Run(config, seed) for config in configs for seed in seeds]


def train(out: Path, seconds: float, part: str) -> None:
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []

    def ended(result: Result) -> None:
        results.append(result)
        print(f"[{time.monotonic() - begun:.0f} s] {result}", flush=True)

    runs = runs_of(part)
    with contextlib.suppress(OutOfTime):
        em.train(runs, n_parallel=len(runs), deadline=begun + seconds, on_end=ended)
    write_records(*record_tables(results), out, f"recall-{part}")
    print(f"{len(results)} of {len(runs)} runs finished")


def steps_to(curves: pd.DataFrame, mark: float) -> float:
    """Return the first evaluated step with this test accuracy; NaN if it is not reached."""
    reached = curves["step"][curves["accuracy"] >= mark]
    return float(reached.iloc[0]) if len(reached) else np.nan


def rows_of(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run: the steps to each mark."""
    groups = dict(iter(curves.groupby("identity")))
    rows = []
    for run in runs.to_dict("records"):
        steps = {f"to {mark:.0%}": steps_to(groups[run["identity"]], mark) for mark in MARKS}
        rows.append({"burst": run["burst"], "seed": run["seed"], "state": run["state"]} | steps)
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
            rows.append({"burst": f"{burst:g} kept", "seed": seed, "state": "reached"} | steps)
    return pd.DataFrame(rows)


def summary(folder: Path) -> None:
    parts = []
    for path in sorted(folder.glob("*.runs.parquet")):
        curves = path.with_name(path.name.replace(".runs.", ".curves."))
        parts.append(rows_of(pd.read_parquet(path), pd.read_parquet(curves)))
    table = pd.concat([constant_rows(), *parts], ignore_index=True)
    kept = table[table["burst"] == "4 kept"].set_index("seed")["to 90%"]
    table["over 4 kept"] = table["to 90%"] / table["seed"].map(kept)
    print(table.sort_values(["burst", "seed"]).to_string(index=False))


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"] and len(sys.argv) >= 4:
        train(Path(sys.argv[2]), float(sys.argv[3]), (*sys.argv[4:], "first")[0])
    elif sys.argv[1:2] == ["summary"]:
        summary(Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER)
    else:
        sys.exit(__doc__)
