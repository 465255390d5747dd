"""Figure 15: groups that overlap, learned by three and by four heads: what groups share, heads share."""

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH, panel
from ...engine import Run
from ...studies import provenance_of
from ...tasks import Groups, MarkovChain
from .._figure import Check, Figure, Outcome
from .._work import Work
from ._chains import LAPTOP, SMOKE, Seen, Training, laptop, smoke, table, watch
from ._stage_checks import ladder
from ._stage_figure import Settings, divergences, masses

OVERLAP = Groups((4, 4, 4), stride=2)


@dataclasses.dataclass(frozen=True)
class Both:
    """The same training with two numbers of heads."""

    training: Training
    heads: tuple[int, int] = (3, 4)
    scale: float = 1e-9

    def part(self, i: int) -> Settings:
        return Settings(self.training, self.training.minimal(heads=self.heads[i], scale=self.scale))

    def parts(self) -> dict[str, list[Run]]:
        return {f"{h} heads": self.training.runs(self.part(i).model) for i, h in enumerate(self.heads)}


def runs(settings: Both) -> list[Run]:
    return [run for part in settings.parts().values() for run in part]


def shares(seen: Seen) -> tuple[float, float]:
    """The attention of the head that looks second most at a lag over that of the first, mean over the lags that two groups
    have in common and over those that one has; mean over seeds."""
    common = seen.groups.members.sum(0) > 1
    found = []
    for curve in seen.curves:
        most = np.sort(seen.heads(curve)[-1], 0)[::-1]
        ratio = most[1] / most[0]
        found.append((ratio[common].mean(), ratio[~common].mean()))
    both, one = np.mean(found, 0)
    return float(both), float(one)


def sharing(seen: Seen) -> list[Check]:
    both, one = shares(seen)
    name = "second most over most attention of heads on a lag: lags of two groups, and of one; mean over seeds"
    return [Check(name, [both, one], "patterns are shared between heads where groups overlap", both > 0.3 and both > 1.5 * one)]


def make(settings: Both, work: Work) -> Outcome:
    found = {name: watch(results) for name, results in work.by_part(settings.parts(), curves=True).items()}
    checks = []
    for name, seen in found.items():
        made = [*ladder(seen), *sharing(seen)]
        checks += [dataclasses.replace(check, name=f"{name}: {check.name}") for check in made]
    return Outcome(
        tables={name.replace(" ", "_"): table(seen.results) for name, seen in found.items()},
        plot=draw(found),
        checks=checks,
        precision="fp32",
        device=provenance_of({name: seen.results for name, seen in found.items()}),
    )


def draw(found: dict[str, Seen]) -> Plot:
    most = max(seen.heads(seen.curves[0]).shape[1] for seen in found.values())
    plot = Plot(figsize=(WIDTH, 3.0 + 0.42 * most), layout="constrained")
    columns: Any = np.ravel(plot.subfigures(1, len(found), squeeze=False))
    for i, (column, (name, seen)) in enumerate(zip(columns, found.items(), strict=True)):
        heads = seen.heads(seen.curves[0]).shape[1]
        above, below = column.subfigures(2, 1, height_ratios=(2.4, 0.4 + 0.42 * most))
        divergences(above.subplots(), seen, "ab"[i], f"{name}: ")
        rows = below.subplots(heads, 1, sharex=True, squeeze=False)[:, 0]
        for k, axes in enumerate(rows):
            masses(axes, seen, k)
            axes.set_ylabel(f"{k + 1}", rotation=0, ha="right", va="center")
        panel(rows[0], "cd"[i], "attention of each head on each group")
        rows[-1].set_xlabel("step")
    return plot


FIGURE = Figure(
    id="yuksel2026/fig15",
    shows="groups that overlap, learned by three and by four heads: what groups share, heads share",
    presets={
        "paper": Both(Training(MarkovChain(OVERLAP))),
        "laptop": Both(laptop(OVERLAP, seeds=1)),
        "smoke": Both(smoke(Groups((2, 2), stride=1)), (2, 3), 1e-3),
    },
    make=make,
    runs=runs,
    seconds={"paper": 20000, "laptop": 100, "smoke": 15},
    shrunk={"laptop": LAPTOP.replace("2 seeds", "one seed"), "smoke": SMOKE},
)
