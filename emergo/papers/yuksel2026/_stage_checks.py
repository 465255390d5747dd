"""What a figure of the stages of a trained chain is held against."""

import dataclasses

import numpy as np

from ...measure import Boundary
from .._figure import Check
from ._chains import ChainRuns


@dataclasses.dataclass(frozen=True)
class Printed:
    """What the paper's figure shows (one seed): read off its plot, or from the notebooks of its public code."""

    boundaries: tuple[float, ...] = ()
    final_kl: tuple[float, ...] = ()
    plateau_levels: tuple[float, ...] = ()

    def near(self, ours: list[Boundary]) -> bool:
        """Whether boundaries are as many as are printed, and within a factor of 1.5 of them."""
        if len(ours) != len(self.boundaries):
            return False
        return bool(np.all(np.abs(np.log(np.divide([b.step for b in ours], self.boundaries))) < np.log(1.5)))


NOTHING = Printed()


def stage_checks(runs: ChainRuns, printed: Printed, one_layer: bool) -> list[Check]:
    """All of them; those of heads for `one_layer`."""
    return ladder_checks(runs, printed) + (head_checks(runs) if one_layer else []) + level_checks(runs, printed)


def ladder_checks(runs: ChainRuns, printed: Printed = NOTHING) -> list[Check]:
    """That a chain is learned in stages, one reference after another."""
    count, seeds = runs.groups.count, runs.seeds
    complete = sum(len(stages) == count for stages in runs.stages)
    departures = runs.departure_boundaries
    leave = min((b.runs for b in departures), default=0)
    rising = bool(np.all(np.diff([0, *(b.step for b in departures)]) > 0))  # not where one is NaN
    published = list(printed.boundaries) or None
    near = "within a factor of 1.5: they are drawn by eye"
    return [
        Check(f"seeds that learn in {count} stages", complete, None, complete == seeds, f"all {seeds}"),
        Check(
            "ends of the plateaus, with 95% intervals over seeds",
            _intervals(runs.boundaries),
            published,
            printed.near(runs.boundaries) if published else len(runs.boundaries) == count - 1,
            near if published else f"{count - 1} of them",
        ),
        Check(
            f"steps at which the student leaves A_1, ...: KL from it 5% of its way up, 95% intervals, {leave} of {seeds} seeds",
            _intervals(departures),
            published,
            printed.near(departures) if published else rising,
            near if published else "one after another",
        ),
        Check(
            "steps at which the student is nearest to A_1, ... and the teacher, geometric mean over seeds",
            geometric_means(runs.nearest_steps),
            "ascend a complexity ladder by passing through simpler hypothesis classes",
            bool(np.all(np.diff(runs.nearest_steps) > 0)),
        ),
    ]


def geometric_means(steps: np.ndarray) -> list[float]:
    """Of each column; step 0 counts as 1."""
    return np.exp(np.log(np.maximum(steps, 1)).mean(0)).tolist()


def _intervals(boundaries: list[Boundary]) -> list[list[float]]:
    return [[float(x) for x in (b.step, b.low, b.high)] for b in boundaries]


def level_checks(runs: ChainRuns, printed: Printed) -> list[Check]:
    """The KLs at the end and on the plateaus, where they are known."""
    checks = []
    if len(printed.final_kl) == runs.groups.count:
        final = runs.final_kl
        close = bool(np.all(np.abs(final - printed.final_kl) < 0.1 + 0.1 * np.array(printed.final_kl)))
        checks.append(Check("KL from A_1, ... and the teacher at the end", final.tolist(), list(printed.final_kl), close))
    if printed.plateau_levels:
        levels = runs.plateau_levels
        close = len(levels) == len(printed.plateau_levels) and bool(np.allclose(levels, printed.plateau_levels, rtol=0.25))
        checks.append(Check("KL from the teacher on the plateaus", levels, list(printed.plateau_levels), close))
    return checks


def owner_check(runs: ChainRuns, published: str) -> Check:
    name = "seeds at whose end each group has a head of its own, the one that looks at it most"
    return Check(name, runs.specialised, published, runs.specialised == runs.seeds)


def head_checks(runs: ChainRuns) -> list[Check]:
    """Where the heads of one layer look."""
    expected = [group + 1 for group in runs.groups.ranking]
    in_order = [order[: len(expected)] == expected for order in runs.learning_order]
    return [
        Check(
            "seeds in which some head has half of its attention on each group, the strongest group first",
            sum(in_order),
            "each stage corresponds to the acquisition of a sparse attention pattern",
            all(in_order),
        ),
        owner_check(runs, "cooperative: heads specialize in distinct patterns"),
        Check(
            "attention that all heads at once have on the strongest group before A_1 is left, least over seeds",
            runs.shared_attention,
            "competitive: heads converge on the most statistically dominant pattern",
            runs.shared_attention > 0.5,
        ),
    ]
