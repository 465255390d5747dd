"""Does the curvature of checkpoints tell how much of a plateau is left? Small Transformers, against two baselines.

python benchmarks/curvature.py OUT          trains 30 runs (or reads them), then forecasts at steps that were fixed in advance

Fixed before any result was seen: the cells, the seeds, the steps and 4096 sequences. A forecast is made wherever a run was
still on its plateau at the later checkpoint of a pair. Its error is |log(predicted / true plateau)|. The baselines are "as long
again" (twice the later step) and the median plateau of the other seeds of the cell (at least the later step). Runs whose rates
are not those of a plateau have no forecast: they are counted, and left out of all three alike.

Decided after results were seen: curvature is that of the maps of attention alone (of all parameters it was that of units of the
MLP, at the five checkpoints of two runs that were looked at), with 30 iterations of Lanczos' method instead of 40; and the
forecasts from the logged attention by itself are exploratory. What `em.gradient_probe` measured is shown too, at shares of the
plateau.
"""

import sys
import time

import numpy as np
import pandas as pd

import emergo as em
from emergo.engine import remaining_steps
from emergo.theory import local_rate_from_growth, remaining_time

PAIRS = ((50, 100), (100, 200), (200, 400), (400, 800), (800, 1600), (1600, 3200))
TASK = em.SingleLocation(length=16, dim=8, position="random", indicator=True)
MODEL = em.Transformer(layers=1, heads=1, width=32)
KEEP = tuple(sorted({step for pair in PAIRS for step in pair}))
SHARED = {"seeds": 6, "precision": "fp32", "keep": KEEP, "probes": (em.gradient_probe,)}
STUDIES = {
    "adam": em.Study(
        TASK, MODEL, em.Optimizer("adam", learning_rate=3e-4), grid={"length": [16, 32], "dim": [8, 16]}, steps=10_000, **SHARED
    ),
    "sgd": em.Study(TASK, MODEL, em.Optimizer("sgd", learning_rate=0.1), steps=30_000, **SHARED),
}


def forecasts(name: str, runs: em.Runs) -> pd.DataFrame:
    """One row for each run and pair of checkpoints on its plateau."""
    table, rows = runs.table, []
    for index, (_, row) in enumerate(table.iterrows()):
        if row["censored"] or row["state"] != "reached":
            continue
        cell = table[(table["length"] == row["length"]) & (table["dim"] == row["dim"]) & (table["seed"] != row["seed"])]
        for before, after in PAIRS:
            if after >= row["plateau"]:
                continue
            left = remaining_steps(runs.parameters(index, before), runs.parameters(index, after))
            guesses = {"predicted": after + left.steps, "again": 2 * after, "median": max(cell["plateau"].median(), after)}
            about = {"optimizer": name, "length": row["length"], "dim": row["dim"], "seed": row["seed"], "step": after}
            rows.append(about | {"plateau": row["plateau"]} | left._asdict() | guesses)
    return pd.DataFrame(rows)


def from_attention(name: str, runs: em.Runs) -> pd.DataFrame:
    """The same forecasts from the attention that was logged over the second half of each run so far, by a parabola through its
    logarithm."""
    rows = []
    for _, row in runs.table.iterrows():
        same = {axis: row[axis] for axis in ("length", "dim")}
        curve = runs.curves[runs.curves["identity"] == row["identity"]]
        cell = runs.table[(runs.table[list(same)] == pd.Series(same)).all(axis=1) & (runs.table["seed"] != row["seed"])]
        for before, after in PAIRS:
            seen = curve[(curve["step"] >= before) & (curve["step"] <= after)]
            if after < row["plateau"] and len(seen) > 2:
                half_change, growth, _ = np.polyfit(seen["step"] - after, np.log(seen["attention_0_0"]), 2)
                left = float(remaining_time(growth, local_rate_from_growth(growth, 2 * half_change)))
                guesses = {"predicted": after + left, "again": 2 * after, "median": max(cell["plateau"].median(), after)}
                rows.append({"optimizer": name, "step": after, "plateau": row["plateau"]} | guesses)
    return pd.DataFrame(rows)


def errors(table: pd.DataFrame) -> pd.DataFrame:
    """The median error of each way by optimizer and step, over the forecasts that there are."""
    ways, made = ("predicted", "again", "median"), table[np.isfinite(table["predicted"])]
    made = made.assign(**{f"error_{way}": np.abs(np.log(made[way] / made["plateau"])) for way in ways})
    grouped = made.groupby(["optimizer", "step"])
    shown = grouped[[f"error_{way}" for way in ways]].median()
    return shown.assign(forecasts=grouped.size(), of=table.groupby(["optimizer", "step"]).size())


def gradients(runs: em.Runs) -> pd.DataFrame:
    """Medians over runs and evaluations of what the probe of gradients measured, by share of the plateau."""
    names = [str(name) for name in runs.curves if str(name).startswith(("agreement", "gradient", "attention", "loss"))]
    sizes = runs.table[["identity", "length", "dim", "plateau"]]
    curves = runs.curves[["identity", "step", *names]].merge(sizes, on="identity")
    shares = pd.cut(curves["step"] / curves["plateau"], [-1, 0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1])
    return curves.groupby(["length", "dim", shares], observed=True)[names].median()


if __name__ == "__main__":
    out, begun, tables, others = sys.argv[1], time.process_time(), [], []
    for name, study in STUDIES.items():
        runs = study.run(f"{out}/{name}")
        print(f"{name}: trained or read after {time.process_time() - begun:.0f} s of CPU", flush=True)
        print(gradients(runs).round(3).to_string())
        others.append(from_attention(name, runs))
        tables.append(forecasts(name, runs))
    pd.concat(tables).to_parquet(f"{out}/forecasts.parquet")
    for title, some in (("curvature of checkpoints", tables), ("attention alone", others)):
        print(title, errors(pd.concat(some)).round(3).to_string(), sep="\n")
    print(f"{time.process_time() - begun:.0f} s of CPU")
