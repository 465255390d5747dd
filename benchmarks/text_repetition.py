"""Does repetition bring in-context learning sooner in language models on real text?

    python -m benchmarks.text_repetition list
    python -m benchmarks.text_repetition train NAME WORK SECONDS RECORDS [--tiny]
    python -m benchmarks.text_repetition report [RECORDS]

The corpora are those of results/corpora.csv. `train` needs a GPU, and the archives of the corpora
(text_corpora.py), unpacked into one folder, which the variable EMERGO_CORPORA names. It works as in
campaigns.py: finished runs are written at once, and the same command goes on from there. `report`
reads records (by default results/text-repetition) and prints the law of the first campaign, and the
conditions of the others as in the figure `emergo/text`, which draws the campaigns `confirm-code`
and `confirm-english`.

No run reads a token twice, except those that it repeats on purpose. results/expectations/text.md
says what we expect.
"""

import itertools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

import emergo as em
from emergo.measure import emergence
from emergo.papers._source import curve
from emergo.papers.experiments.text import (
    CONFIRMED,
    INDUCES,
    KINDS,
    LENGTH,
    NONE,
    Repetition,
    best_head,
    compared,
    conditions_of,
    config_of,
    rows_of,
    steps_of,
    summary_of,
)
from emergo.store import Records, read_records
from emergo.tasks import find_data

from .campaigns import Studies, found, main

FOLDER = Path(__file__).parents[1] / "results" / "text-repetition"
WAVES = {"screen": 14}  # runs that train together, and are written together; else 12
# The screen: three amounts of each kind, kept, and dropped after a fifth and a half of training.
AMOUNTS = {
    "copy": (0.1, 0.3, 0.8),
    "subset_share": (0.1, 0.3, 0.6),
    "phrase_repeats": (1.0, 4.0, 12.0),
}
ENDS = (1.0, 0.2, 0.5)
SCREENED = tuple(
    Repetition(kind, amount, end)
    for end, (kind, amounts) in itertools.product(ENDS, AMOUNTS.items())
    for amount in amounts
)


def law() -> Studies:
    """Steps until a head induces without repetition, by batch, length and model size."""
    cells = [(b, length, 4, 256) for length in (128, 256, 64, 512) for b in (32, 128, 8)]
    cells += [(32, LENGTH, 2, 256), (32, LENGTH, 4, 512)]
    axes: dict[str, list[Any]] = {"batch": [], "length": [], "steps": [], "layers": []}
    axes["width"] = []
    for batch, length, layers, width in cells:
        values = (batch, length, steps_of("code", length, batch), layers, width)
        for column, value in zip(axes.values(), values, strict=True):
            column.append(value)
    ends: Any = em.When("induction_head", above=INDUCES, before=0.0, after=1.0)
    base = config_of("code").replace(n_test=32, stop=ends)
    return {"cells": em.Study.of(base, zip=axes, seeds=3)}


def switched(base: em.Config, repetition: Repetition | None) -> em.Text:
    """Return the task of a run of the screen. Every kind is a switch."""
    switches: dict[str, Any] = {kind: em.Switch(0.0, 0.0, at=base.steps) for kind in KINDS}
    if repetition is not None and repetition.end is not None:
        at = round(repetition.end * base.steps)
        switches[repetition.kind] = em.Switch(repetition.amount, 0.0, at=at)
    task: Any = base.task
    return task.replace(**switches)


def screen() -> Studies:
    """Each kind of repetition in three amounts, kept and dropped, on code."""
    base = config_of("code")
    tasks = {NONE: switched(base, None)} | {r.label: switched(base, r) for r in SCREENED}
    return {"code": em.Study.of(base, grid={"task": tasks}, seeds=2)}


def confirm(corpus: str, width: int) -> Studies:
    """Return none and the chosen conditions with new seeds."""
    return {"conditions": compared(config_of(corpus, width), CONFIRMED, range(4, 8))}


def confirm_code() -> Studies:
    """The chosen conditions, the policy and none in the model of the screen, on code."""
    return confirm("code", 256)


def confirm_english() -> Studies:
    """The same on English."""
    return confirm("English", 256)


def reference_code() -> Studies:
    """The same with the reference model, on code."""
    return confirm("code", 512)


def reference_english() -> Studies:
    """The same with the reference model, on English."""
    return confirm("English", 512)


def limits() -> Studies:
    """Other learning rates, and smaller batches, which take more steps for the same tokens."""
    studies = {}
    for rate in (3e-4, 3e-3):
        base = config_of("code", rate=rate)
        studies[f"rate {rate:g}"] = compared(base, CONFIRMED[:1], range(4, 7))
    small = config_of("code").replace(batch=16, steps=steps_of("code", batch=16))
    studies["batch 16"] = compared(small, CONFIRMED[:1], range(4, 7))
    return studies


CAMPAIGNS: Mapping[str, Callable[[], Studies]] = {
    "law": law,
    "screen": screen,
    "confirm-code": confirm_code,
    "confirm-english": confirm_english,
    "reference-code": reference_code,
    "reference-english": reference_english,
    "limits": limits,
}


def law_rows(records: Records) -> pd.DataFrame:
    """Return a row per run of the campaign `law`: tokens until a head has formed."""
    rows = []
    for result in found(law()["cells"], records):
        config: Any = result.run.config
        scores = best_head({"induction_head": curve(result, "induction_head")})
        head = emergence(curve(result, "step"), scores, INDUCES, "above")
        rows.append(
            {
                "batch": config.batch,
                "length": config.task.length,
                "layers": config.model.layers,
                "width": config.model.width,
                "tokens": config.batch * config.task.length * head.time,
                "censored": head.censored,
                "seed": result.run.seed,
            }
        )
    return pd.DataFrame(rows)


def words(cell: Any) -> Any:
    """Return a cell of a summary; a mean with its interval becomes text."""
    if not isinstance(cell, list):
        return cell
    ((mean, low, high),) = cell
    return f"{mean:.3g} [{low:.3g}, {high:.3g}]"


def report(folder: Path) -> None:
    records = read_records(folder)
    laws = law_rows(records)
    if len(laws):
        cells = laws.groupby(["batch", "length", "layers", "width"], sort=False)
        print(cells.agg(tokens=("tokens", "median"), censored=("censored", "sum")).to_string())
        same = laws[(laws["layers"] == 4) & (laws["width"] == 256)]
        if same.groupby(["batch", "length"]).ngroups >= 3:
            print(em.fit_law(same, "tokens", ["batch", "length"]))
    for name, make in CAMPAIGNS.items():
        for label, study in make().items() if name != "law" else ():
            runs = found(study, records)
            if len(runs):
                rows = rows_of(conditions_of(runs)).assign(corpus=label)
                print(f"\n{name}\n{summary_of(rows).map(words).to_string(index=False)}")


if __name__ == "__main__":
    if place := os.environ.get("EMERGO_CORPORA"):
        find_data(Path(place))
    if sys.argv[1:2] == ["report"]:
        report(Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER)
    else:
        # A checkpoint would take longer to write than many steps.
        options = {"n_parallel": WAVES.get("".join(sys.argv[2:3]), 12), "checkpoint_seconds": 1e9}
        main(CAMPAIGNS, sys.argv[1:], __doc__ or "", **options)
