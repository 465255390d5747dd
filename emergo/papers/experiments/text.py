"""Repetition in a small language model that reads the source of Python's standard library.

Sequences repeat their beginning with some probability, come from a small subset of the corpus, or
repeat a phrase. Every kind of repetition is kept, or switched off during training. We measure when
the model learns to copy random tokens, which it has never seen in this order, and what the
repetition costs on text without repetition.

The corpus belongs to the version of Python, so runs differ between versions.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, key, step_curve
from ...measure import Emergence, emergence, head_classes
from ...models import Transformer
from ...study import Runs, Study
from ...tasks import Text
from ...training import Config, Optimizer, Result, Switch
from .._figure import Check, Figure, Outcome, Plot, RunSource
from .._panels import panels
from .._source import curve
from ._shared import Look

LEARNED = 0.5
"""Accuracy of copying, and score of a head, that counts as learned."""
HOLD = 2  # evaluations in a row
NAMES = {"copy": "copies", "subset_share": "small subset", "phrase_repeats": "phrases"}
"""Kinds of repetition by the field of the task."""
COLOURS = {"none": BLACK, "kept": BLUE, "dropped": GREEN}
HEADS = {"previous_token_head": ORANGE, "induction_head": BLUE, "duplicate_token_head": GREY}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the figure.

    - `amounts`: the amounts of each kind of repetition, by the field of the task.
    - `at`: the steps at which repetition is switched off.
    """

    base: Config
    amounts: tuple[tuple[str, tuple[float, ...]], ...] = (("copy", (0.8,)),)
    at: tuple[int, ...] = (1000,)
    seeds: int = 1

    def studies(self) -> dict[str, Study]:
        """Return one study per kind of repetition; the first one also has runs without any."""
        studies = {}
        for kind, amounts in self.amounts:
            # One type of schedule for all runs lets them share a program.
            end = self.base.steps
            values = [Switch(p, 0.0, at=step) for p in amounts for step in (end, *self.at)]
            if not studies:
                values.insert(0, Switch(0.0, 0.0, at=end))
            studies[NAMES[kind]] = Study.of(self.base, grid={kind: values}, seeds=self.seeds)
        return studies


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies(), curves=True)
    table = pd.DataFrame([row_of(kind, r) for kind, runs in parts.items() for r in runs])
    heads = head_table(parts)
    first = next(iter(parts.values()))
    checks = [*copying_checks(table)]
    summary = {"runs": table.drop(columns=["run"])}
    tables = {"runs": table} | ({"heads": heads} if len(heads) else {})
    return Outcome(tables, draw(first, settings), checks=checks, summary=summary)


def switch_of(result: Result) -> tuple[str, Switch]:
    """Return the field of the task that repeats, and its schedule."""
    task = cast(Text, result.run.config.task)
    return next((n, s) for n in NAMES if isinstance(s := getattr(task, n), Switch))


def kind_of(result: Result) -> str:
    """Return `none`, `kept` or `dropped`."""
    _, switch = switch_of(result)
    if switch.before == 0:
        return "none"
    return "kept" if switch.at >= result.run.config.steps else "dropped"


def copying_of(result: Result) -> Emergence:
    """Return the step at which a run copies."""
    accuracy = curve(result, "accuracy_copied")
    return emergence(curve(result, "step"), accuracy, LEARNED, "above", hold=HOLD)


def row_of(name: str, result: Result) -> dict[str, Any]:
    """Return the row of a run: when copying emerged, and measurements at the end."""
    _, switch = switch_of(result)
    copying = copying_of(result)
    kind = kind_of(result)
    row = {
        "run": result.run.identity,
        "repetition": "none" if kind == "none" else name,
        "kind": kind,
        "amount": switch.before,
        "at": switch.at,
        "seed": result.run.seed,
        "copying": copying.time,
        "copying_low": copying.low,
        "copying_high": copying.high,
        "copying_state": copying.state,
    }
    ends = ("loss", "accuracy_copied", "in_context")
    return row | {end: float(curve(result, end)[-1]) for end in ends}


def head_table(parts: Mapping[str, Runs]) -> pd.DataFrame:
    """Tabulate the heads that entered a class, with the steps."""
    frames = []
    for name, runs in parts.items():
        for result in runs:
            _, switch = switch_of(result)
            found = head_classes({n: curve(result, n) for n in ("step", *HEADS)})
            columns = {"repetition": name, "kind": kind_of(result), "amount": switch.before}
            columns |= {"at": switch.at, "seed": result.run.seed}
            frames.append(found.assign(**columns))
    return pd.concat(frames, ignore_index=True)


def copying_checks(table: pd.DataFrame) -> Iterator[Check]:
    """Compare when runs copy with what the theory of repetition expects."""
    reached = table["copying_state"] == "reached"
    for kind, expected in (("kept", True), ("none", False)):
        rows = reached[(table["kind"] == kind) & table["repetition"].isin(("none", "copies"))]
        if len(rows):
            holds = rows.mean() > 0.5 if expected else rows.mean() < 0.5
            words = "most" if expected else "few: text alone teaches it later"
            what = "copies kept" if expected else "no repetition"
            yield Check(f"{what}: share of runs that copy", rows.mean(), None, holds, words)
    copies = table[table["repetition"] == "copies"]
    for at, rows in copies[copies["kind"] == "dropped"].groupby("at"):
        before = rows[rows["copying"] <= at]
        if len(before):
            left = before["accuracy_copied"].mean()
            yield Check(
                f"copies dropped at step {at}, after copying emerged: accuracy of copying at the "
                f"end",
                left,
                None,
                left >= LEARNED,
                f"at least {LEARNED:g}: what was learned stays",
            )


def draw(runs: Runs, settings: Settings) -> Plot:
    """Draw copying, the loss and heads of the first kind of repetition."""
    titles = ("a  copying random tokens", "b  text without repetition", "c  heads, copies kept")
    plot, (a, b, c) = panels(2.8, *titles)
    strongest = max((switch_of(r)[1].before for r in runs), default=0.0)
    for result in runs:
        kind = kind_of(result)
        if switch_of(result)[1].before not in (0.0, strongest):
            continue
        draw_line(a, result, curve(result, "accuracy_copied"), COLOURS[kind])
        draw_line(b, result, curve(result, "loss"), COLOURS[kind])
        if kind == "kept":
            for name, colour in HEADS.items():
                scores = curve(result, name)
                largest = np.max(scores.reshape(len(scores), -1), 1)
                draw_line(c, result, largest, colour)
    for axes in (a, b):
        for at in settings.at:
            axes.axvline(at, color=GREEN, lw=0.8, ls=":")
    a.axhline(LEARNED, color=GREY, lw=0.8, ls="--")
    a.set(ylabel="accuracy", ylim=(0, 1))
    b.set_ylabel("validation loss (nats per byte)")
    c.set(ylabel="largest score of a head", ylim=(0, 1))
    looks: dict[str, Look] = {name: {"color": colour} for name, colour in COLOURS.items()}
    key(a, [*looks.items()], loc="upper left", title="copies")
    names = {name: name.replace("_", " ").removesuffix(" head") for name in HEADS}
    key(c, [(names[name], {"color": colour}) for name, colour in HEADS.items()], loc="upper left")
    return plot


def draw_line(axes: Axes, result: Result, values: np.ndarray, colour: Any) -> None:
    step_curve(axes, curve(result, "step"), values, color=colour, lw=1)
    axes.set_xlabel("step")


SMALL = Config(
    Text(length=64, copy_after="random"),
    Transformer(
        layers=2,
        heads=2,
        width=64,
        mlp_factor=1,
        norm="pre",
        mask="causal",
        activation="gelu",
        positions="rope",
        initial="normal",
    ),
    Optimizer("adam", 3e-3),
    batch=32,
    precision="fp32",
    steps=1600,
    threshold=None,
    n_test=64,
)
# 3.2 million parameters. 2,200 batches of 32 sequences are nine million bytes, less than one epoch
# with the standard library of any Python from 3.11 to 3.13.
SCREEN = SMALL.replace(
    task__length=128,
    model__layers=4,
    model__heads=4,
    model__width=256,
    model__mlp_factor=4,
    optimizer__learning_rate=1e-3,
    steps=2200,
    precision="bf16",
)
TINY = SMALL.replace(task__length=16, model__width=8, batch=8, steps=100, n_test=8)
KINDS = (
    ("copy", (0.2, 0.5, 0.8)),
    ("subset_share", (0.1, 0.25, 0.5)),
    ("phrase_repeats", (1.0, 2.0, 4.0)),
)
FIGURE = Figure(
    "emergo/text",
    "when a small language model learns to copy, with repetition kept, dropped, and without",
    {
        "paper": Settings(SCREEN, KINDS, at=(550, 1100), seeds=2),
        "laptop": Settings(SMALL),
        "smoke": Settings(TINY, at=(50,)),
    },
    make,
    {"paper": 2e5, "laptop": 100, "smoke": 20},
    curves=True,
    local=True,
)
