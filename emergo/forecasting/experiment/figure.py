"""Forecasts of runs that they were not calibrated on, compared with the outcomes.

The method, its calibration, the runs, the measures and the bounds were committed before the judged
runs were trained, and one further rule before the fresh runs
(results/expectations/forecast-protocol.md).
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import BLUE, GREY, ORANGE, WIDTH, Picture, hues, key, subtitle
from ...papers import Check, Figure, Outcome, RunSource
from .._table import shipped_table
from ._moments import (
    AGAIN,
    FRESH,
    JUDGED,
    LATER,
    LOGS,
    NEW,
    OWN,
    follow_logs,
    follow_own,
    moments_of,
    own_results,
)

ALL = "all PyTorch models"
POOLED = (0.75, 0.88)
EACH = 0.6
LEAST_FRESH = 0.65
MOST_ANSWERS = 0.02
DOT = {"marker": "o", "ls": ""}


@dataclasses.dataclass(frozen=True)
class Settings:
    """`own`: whether emergo's own recorded runs are judged too."""

    own: bool = True


def make(settings: Settings, source: RunSource) -> Outcome:
    runs = follow_logs(JUDGED) + follow_logs(AGAIN, LATER) + follow_logs(FRESH, NEW)
    if settings.own:
        runs += follow_own(own_results(judged=True))
    moments = judge(moments_of(runs))
    summary = pd.DataFrame(
        [summarise(ALL, moments[moments["source"] == LOGS])]
        + [summarise(str(family), rows) for family, rows in moments.groupby("family", sort=False)]
    )
    tables = {"moments": moments, "summary": summary}
    own = moments.loc[moments["source"] == OWN, "family"]
    checks = [*checks_of(summary, set(own))]
    first = announcements(moments[(moments["source"] == LOGS) & ~moments["shuffled"]])
    return Outcome(tables, draw(moments, summary), checks=checks, summary={"first answers": first})


def judge(moments: pd.DataFrame) -> pd.DataFrame:
    """Add the forecasts: `step`, the ends of the 80% interval, and whether it holds the truth.

    A metric that rises gets no step, so its `ratio` is not judged.
    """
    moments = moments.assign(ratio=moments["ratio"].mask(moments["rising"]))
    ratio = [np.inf if q is None else q for q in shipped_table()["quantiles"]]
    now = moments["now"].to_numpy()[:, None]
    steps = now * (1 + moments["ahead"].to_numpy()[:, None]) ** np.array(ratio)
    low, middle, high = steps[:, 1], steps[:, 3], steps[:, 5]
    held = moments["time"].between(low, high).astype(float)
    known = moments["ratio"].notna() & ~moments["censored"]
    return moments.assign(step=middle, low80=low, high80=high, held80=held.where(known))


def by_run(moments: pd.DataFrame, column: str) -> float:
    """Average a column over the moments of each run, and then over runs."""
    return float(moments.groupby("run")[column].mean().mean())


def factor(predicted: pd.Series, truth: pd.Series) -> float:
    """Return the median factor between two columns, in either direction."""
    logs = pd.Series(np.log(predicted / truth))
    return float(np.exp(logs.abs().median()))


def summarise(family: str, moments: pd.DataFrame) -> dict[str, float | str]:
    """Summarise the forecasts of a family; see the protocol for the measures."""
    learning = moments[~moments["shuffled"]]
    shuffled = moments[moments["shuffled"]]
    told = learning[learning["held80"].notna()]
    coming = learning[(learning["metric"] > 0) | (learning["probe"] > 0)]
    known = coming[coming["drop"].notna()]
    answers = shuffled["ratio"].notna() | (shuffled["metric"] > 0) | (shuffled["probe"] > 0)
    return {
        "family": family,
        "runs": learning["run"].nunique(),
        "told_runs": told["run"].nunique(),
        "told": len(told),
        "held80": by_run(told, "held80"),
        "error": factor(told["step"], told["time"]),
        "error_again": factor(2 * told["now"], told["time"]),
        "left": float((1 - told["now"] / told["time"]).median()),
        "coming_runs": known["run"].nunique(),
        "came": by_run(known, "drop"),
        "lead": float(known.loc[known["drop"] == 1, "lead"].median()),
        "shuffled_cuts": len(shuffled),
        "answers": float(answers.mean()),
        "steps_told": float(shuffled["ratio"].notna().mean()),
    }


def announcements(moments: pd.DataFrame) -> pd.DataFrame:
    """Tell how many runs get which answer, when first, and how often an announced drop came.

    `seen` is the median share of the plateau that had passed at the first such answer of a run.
    """
    answers = {
        "a step": moments["ratio"].notna(),
        "a drop, from the metric": moments["metric"] > 0,
        "a drop, from a head": moments["probe"] > 0,
        "any": moments["ratio"].notna() | (moments["metric"] > 0) | (moments["probe"] > 0),
    }
    rows = []
    for answer, given in answers.items():
        those = moments[given]
        share = those["now"] / those["time"]
        known = those[those["drop"].notna()]
        rows.append(
            {
                "answer": answer,
                "runs": those["run"].nunique(),
                "of": moments["run"].nunique(),
                "seen": float(share.groupby(those["run"]).first().median()),
                "known": known["run"].nunique(),
                "came": by_run(known, "drop"),
            }
        )
    return pd.DataFrame(rows)


def checks_of(summary: pd.DataFrame, own: set[str]) -> Iterator[Check]:
    """Compare the summary with the bounds of the protocol; the bounds are for PyTorch models."""
    low, high = POOLED
    for row in summary.to_dict("records"):
        name = f"{row['family']} ({row['told']} forecasts of {row['told_runs']} runs)"
        held = row["held80"]
        if row["family"] == ALL:
            yield Check(
                f"{name}: runs in the 80% interval",
                held,
                None,
                low <= held <= high,
                f"{low} to {high}",
            )
            yield Check(
                f"shuffled runs ({row['shuffled_cuts']} cuts): share of cuts with an answer",
                row["answers"],
                None,
                row["answers"] <= MOST_ANSWERS,
                f"at most {MOST_ANSWERS}",
            )
        elif row["told"]:
            least = LEAST_FRESH if row["family"] == NEW else EACH
            yield Check(
                f"{name}: runs in the 80% interval", held, None, held >= least, f"at least {least}"
            )
        if row["told"]:
            yield Check(
                f"{name}: median factor off",
                row["error"],
                None,
                row["error"] <= row["error_again"],
                f"at most {row['error_again']:.2f}, that of 'as long again'",
            )
        if row["coming_runs"]:
            where = "" if row["family"] in own else "; as long as the runs had"
            yield Check(
                f"{row['family']}: an announced drop came ({row['coming_runs']} runs{where})",
                row["came"],
                None,
                row["came"] >= 0.5,
                "more often than not",
            )


def draw(moments: pd.DataFrame, summary: pd.DataFrame) -> Picture:
    """Draw every forecast, the coverage by family, and the lead of announced drops."""
    plot = Picture(figsize=(WIDTH, 3.0), layout="constrained")
    a, b, c = plot.subplots(1, 3)
    families = list(summary["family"])
    told = moments[moments["held80"].notna() & (moments["source"] == LOGS)]
    groups = list(told.groupby("family", sort=False))
    marks = []
    for (family, rows), colour in zip(groups, hues(len(groups)), strict=True):
        dots = DOT | {"color": colour, "ms": 3.5}
        a.plot(rows["now"] / rows["time"], rows["step"] / rows["time"], **dots)
        marks.append((str(family), dots))
    a.axhline(1.0, color=GREY, lw=0.8)
    a.set(xlim=(0, 1.03), xlabel="share of the plateau seen", ylabel="step forecast / true step")
    a.set_yscale("log")
    a.set_ylim(0.25, 2.2)
    a.set_yticks([0.3, 0.5, 0.7, 1.0, 1.4, 2.0], labels=["0.3", "0.5", "0.7", "1", "1.4", "2"])
    a.minorticks_off()
    key(a, marks, loc="lower left")
    _title(a, "a  every forecast", "from the metric alone")
    places = np.arange(len(families))
    b.axvline(0.8, color=GREY, lw=0.8, ls=":")
    b.plot(summary["held80"], places, color=BLUE, **DOT)
    b.set(xlim=(0, 1.03), xlabel="runs in the 80% interval")
    b.set_yticks(places, families)
    _title(b, "b  coverage", "dotted: as it should be")
    c.plot(summary["lead"], places, color=ORANGE, **DOT)
    c.set(xlabel="time to the drop / time so far", yticks=[])
    _title(c, "c  a drop is coming", "median lead")
    for axes in (b, c):
        axes.set_ylim(len(families) - 0.5, -0.5)
    return plot


def _title(axes: Axes, words: str, small: str) -> None:
    axes.set_title(words, y=1.09)
    subtitle(axes, small)


FIGURE = Figure(
    "emergo/forecast",
    "forecasts of emergence: error, coverage and false alarms",
    {"paper": Settings(), "laptop": Settings(), "smoke": Settings(own=False)},
    make,
    {"paper": 30, "laptop": 30, "smoke": 10},
)
