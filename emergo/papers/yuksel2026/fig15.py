"""Figure 15: groups that overlap, learned by three and by four heads: what groups share, heads share."""

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH
from ...engine import Run
from ...measure import head_similarity
from ...studies import provenance_of
from ...tasks import Groups, MarkovChain
from .._figure import Check, Figure, Outcome
from .._work import Work
from ._chains import LAPTOP, SMOKE, Seen, Training, initial, laptop, smoke, table, watch
from ._stage_checks import NOTHING, Printed, ladder
from ._stage_figure import Settings, by_group, divergences, masses

OVERLAP = Groups((4, 4, 4), stride=2)
PRINTED = {"4 heads": Printed(boundaries=(150, 700))}


@dataclasses.dataclass(frozen=True)
class Both:
    """The same training with two numbers of heads."""

    training: Training
    heads: tuple[int, int] = (3, 4)
    scale: float | None = None
    """None: Xavier's start."""

    def part(self, i: int) -> Settings:
        return Settings(self.training, self.training.minimal(heads=self.heads[i], **initial(self.scale)))

    def parts(self) -> dict[str, list[Run]]:
        return {f"{h} heads": self.training.runs(self.part(i).model) for i, h in enumerate(self.heads)}


def runs(settings: Both) -> list[Run]:
    return [run for part in settings.parts().values() for run in part]


def sharing(seen: Seen) -> list[Check]:
    """How much the head that looks second most at a group looks at it, over the one that does most: 0 where each group has a
    head of its own. And how alike heads are."""
    most = [np.sort(seen.mass(curve)[-1], 0)[::-1] for curve in seen.curves]
    second = float(np.mean([mass[1] / mass[0] for mass in most]))
    alike = float(np.mean([head_similarity(seen.heads(curve)[-1]) for curve in seen.curves]))
    return [
        Check(
            "at the end, second most over most attention of heads on a group, and similarity of heads, mean over seeds",
            [second, alike],
            "patterns are shared between heads",
            second > 0.4 and alike < 0.7,
        )
    ]


def make(settings: Both, work: Work) -> Outcome:
    found = {name: watch(results) for name, results in work.by_part(settings.parts(), curves=True).items()}
    checks = []
    for name, seen in found.items():
        made = [*ladder(seen, PRINTED.get(name, NOTHING)), *sharing(seen)]
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
            masses(axes, seen, k, f"head {k + 1}")
        by_group(rows[0], seen, "cd"[i], "attention of each head on each group")
        rows[-1].set_xlabel("step")
    return plot


FIGURE = Figure(
    id="yuksel2026/fig15",
    shows="groups that overlap, learned by three and by four heads: what groups share, heads share",
    presets={
        "paper": Both(Training(MarkovChain(OVERLAP))),
        "laptop": Both(laptop(OVERLAP, seeds=1, steps=2000), scale=1e-9),
        "smoke": Both(smoke(Groups((2, 2), stride=1)), (2, 3), 1e-3),
    },
    make=make,
    runs=runs,
    seconds={"paper": 20000, "laptop": 62, "smoke": 15},
    shrunk={"laptop": f"initial scale 1e-9, {LAPTOP}".replace("2 seeds", "one seed"), "smoke": SMOKE},
)
