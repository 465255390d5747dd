"""Dropout in every step, or in one of three as in the published runs of yuksel2026, and their start: what depends on them?"""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ..._style import BLUE, GREEN, ORANGE, WIDTH, outside
from ...engine import Run
from ...models import ChainTransformer
from ...studies import Result, provenance_of
from .._figure import Check, Figure, Outcome
from .._work import Work
from ..yuksel2026 import fig3
from ..yuksel2026._chains import Training, smoke, watch, weight

HOW: dict[str, dict[str, Any]] = {
    "in every step": {},
    "in one step of three": {"dropout_every": 3},
    "and the published start": {"dropout_every": 3, "start": "xavier"},
}
COLOURS = dict(zip(HOW, (ORANGE, BLUE, GREEN), strict=True))


@dataclasses.dataclass(frozen=True)
class Settings:
    trainings: tuple[tuple[str, Training, ChainTransformer], ...]
    """Named, with a model whose dropout is in force in every step and that starts as PyTorch's layers do."""

    def parts(self) -> dict[tuple[str, str], list[Run]]:
        return {
            (name, how): training.runs(dataclasses.replace(model, **changes))
            for name, training, model in self.trainings
            for how, changes in HOW.items()
        }


def runs(settings: Settings) -> list[Run]:
    return [run for part in settings.parts().values() for run in part]


def make(settings: Settings, work: Work) -> Outcome:
    named = {" | ".join(key): part for key, part in settings.parts().items()}
    found = work.by_part(named, curves=True)
    rows = []
    for name, results in found.items():
        seen = watch(results)
        for curve, drops, result in zip(seen.curves, seen.stages, seen.results, strict=True):
            task, how = name.split(" | ")
            least = int(np.argmin(curve["excess"]))
            row = {"task": task, "dropout": how, "seed": result.run.seed, "stages": len(drops)}
            row |= {"excess": float(curve["excess"][-1]), "least": float(curve["excess"][least])}
            row |= {f"left_{k + 1}": step for k, step in enumerate(seen.departures(curve))}
            rows.append(row | {"least_at": int(curve["step"][least]), "heads": float(seen.mass(curve)[-1].max(0).min())})
    table = pd.DataFrame(rows)
    return Outcome(
        tables={"runs": table},
        plot=draw(found, settings),
        checks=[check for name, rows in table.groupby("task", sort=False) for check in checks_of(str(name), rows)],
        precision="fp32",
        device=provenance_of(found),
    )


def checks_of(task: str, table: pd.DataFrame) -> list[Check]:
    left = [name for name in table.columns if name.startswith("left_")]
    means = table.groupby("dropout", sort=False)[["excess", "stages", "heads"]].mean()
    log_left = table.assign(**{name: np.log(table[name]) for name in left}).groupby("dropout")[left].mean()
    there = [how for how in HOW if how in means.index]
    always, seldom, published = (means.loc[how] if how in there else None for how in HOW)
    if always is None or seldom is None:
        return []
    words = f"dropout {', '.join(there)}"
    found = [
        Check(
            f"{task}: KL from the teacher at the end, mean over seeds, {words}",
            means.loc[there, "excess"].tolist(),
            None,
            bool(always["excess"] > seldom["excess"]),
            "less with less dropout",
        ),
        Check(
            f"{task}: the most that a head looks at the group looked at least, in the end, {words}",
            means.loc[there, "heads"].tolist(),
            None,
            bool(seldom["heads"] >= 0.5),
            "with less dropout above 0.5: each group has a head",
        ),
        Check(
            f"{task}: stages found, mean over seeds, {words}",
            means.loc[there, "stages"].tolist(),
            None,
            bool(seldom["stages"] >= always["stages"]),
            "no fewer with less dropout",
        ),
    ]
    if published is not None:
        early = bool(np.all(log_left.loc[there[2]] < log_left.loc[there[1]]))
        name = f"{task}: steps at which the student leaves A_1, ..., geometric mean over seeds, {words}"
        found.append(
            Check(name, np.exp(log_left.loc[there].to_numpy()).ravel().tolist(), None, early, "sooner with the published start")
        )
    return found


def draw(found: dict[str, list[Result]], settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH * 0.42 * len(settings.trainings) + 1, 2.6), layout="constrained")
    panels = plot.subplots(1, len(settings.trainings), sharey=True, squeeze=False)[0]
    for axes, (task, _, _) in zip(panels, settings.trainings, strict=True):
        for how, colour in COLOURS.items():
            for i, result in enumerate(found.get(f"{task} | {how}", [])):
                assert result.curves is not None
                axes.plot(result.curves["step"][1:], result.curves["excess"][1:], color=colour, **weight(i))
        axes.set(xscale="log", yscale="log", xlabel="step")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(task)
    panels[0].set_ylabel("KL from the teacher")
    outside(
        panels[-1],
        "dropout",
        [(how.replace(" step", "\nstep").replace(" pub", "\npub"), {"color": c}) for how, c in COLOURS.items()],
    )
    return plot


_SMALL = dataclasses.replace(fig3.SMALL, windows=None, steps=2500)
_TINY = smoke(seeds=1)
FIGURE = Figure(
    id="emergo/dropout",
    shows="the stages of the full Transformer with dropout in every step, in one of three, and with the published start",
    presets={
        "paper": Settings((("groups of 4, 4, 4", fig3.PAPER, fig3.PAPER.full()),)),
        "laptop": Settings((("groups of 4, 4, 4", _SMALL, _SMALL.full(width=48, hidden=32)),)),
        "smoke": Settings((("two groups", _TINY, _TINY.full(heads=2, width=8, hidden=8)),)),
    },
    make=make,
    runs=runs,
    seconds={"paper": 80000, "laptop": 47, "smoke": 17},
    shrunk={
        "laptop": "width 48, 16 tokens, 12 of them generated a sequence, batches of 64 of fresh data, learning rate 2e-3, "
        "2,500 steps, one seed",
        "smoke": "two groups of one position, 5 tokens, width 8, batches of 32, 60 steps",
    },
)
