"""What a figure of the stages of a trained chain is held against."""

import dataclasses

import numpy as np

from ...measure import Boundary
from .._figure import Check
from ._chains import Seen


@dataclasses.dataclass(frozen=True)
class Printed:
    """What the paper's figure shows (one seed): read off its plot, or from the notebooks of its public code."""

    boundaries: tuple[float, ...] = ()
    last: tuple[float, ...] = ()
    plateaus: tuple[float, ...] = ()

    def near(self, ours: list[Boundary]) -> bool:
        """Whether boundaries are as many as are printed, and within a factor of 1.5 of them."""
        steps = [b.step for b in ours]
        return len(steps) == len(self.boundaries) and bool(
            np.all(np.abs(np.log(np.divide(steps, self.boundaries))) < np.log(1.5))
        )


NOTHING = Printed()


def checks_of(seen: Seen, printed: Printed, one_layer: bool) -> list[Check]:
    """All of them; those of heads for `one_layer`."""
    return ladder(seen, printed) + (heads_of(seen) if one_layer else []) + levels(seen, printed)


def ladder(seen: Seen, printed: Printed = NOTHING) -> list[Check]:
    """That a chain is learned in stages, one reference after another."""
    count, seeds = seen.groups.count, len(seen.results)
    whole = sum(len(run) == count for run in seen.stages)
    found, left = seen.boundaries, seen.left
    leave = min((b.runs for b in left), default=0)
    rising = bool(np.all(np.diff([0, *(b.step for b in left)]) > 0))  # not where one is NaN
    near = "within a factor of 1.5: they are drawn by eye"
    return [
        Check(f"seeds that learn in {count} stages", whole, None, whole == seeds, f"all {seeds}"),
        Check(
            "ends of the plateaus, with 95% intervals over seeds",
            _spread(found),
            list(printed.boundaries) or None,
            printed.near(found) if printed.boundaries else len(found) == count - 1,
            near if printed.boundaries else f"{count - 1} of them",
        ),
        Check(
            f"steps at which the student leaves A_1, ...: KL from it 5% of its way up, 95% intervals, {leave} of {seeds} seeds",
            _spread(left),
            list(printed.boundaries) or None,
            printed.near(left) if printed.boundaries else rising,
            near if printed.boundaries else "one after another",
        ),
        Check(
            "steps at which the student is nearest to A_1, ... and the teacher, geometric mean over seeds",
            [float(step) for step in np.exp(np.log(np.maximum(seen.nearest, 1)).mean(0))],
            "ascend a complexity ladder by passing through simpler hypothesis classes",
            bool(np.all(np.diff(seen.nearest) > 0)),
        ),
    ]


def _spread(boundaries: list[Boundary]) -> list[list[float]]:
    return [[float(x) for x in (b.step, b.low, b.high)] for b in boundaries]


def levels(seen: Seen, printed: Printed) -> list[Check]:
    """The KLs at the end and on the plateaus, where they are known."""
    found = []
    if len(printed.last) == seen.groups.count:
        ours = seen.last
        close = bool(np.all(np.abs(ours - printed.last) < 0.1 + 0.1 * np.array(printed.last)))
        found.append(Check("KL from A_1, ... and the teacher at the end", ours.tolist(), list(printed.last), close))
    if printed.plateaus:
        ours = np.array(seen.plateaus)
        close = len(ours) == len(printed.plateaus) and bool(np.allclose(ours, printed.plateaus, rtol=0.25))
        found.append(Check("KL from the teacher on the plateaus", ours.tolist(), list(printed.plateaus), close))
    return found


def heads_of(seen: Seen) -> list[Check]:
    """Where the heads of one layer look."""
    wanted, seeds = [group + 1 for group in seen.groups.ranking], len(seen.results)
    right = [run[: len(wanted)] == wanted for run in seen.order()]
    return [
        Check(
            "seeds in which some head has half of its attention on each group, the strongest group first",
            sum(right),
            "each stage corresponds to the acquisition of a sparse attention pattern",
            all(right),
        ),
        Check(
            "seeds at whose end each group has a head of its own, the one that looks at it most",
            seen.owners,
            "cooperative: heads specialize in distinct patterns",
            seen.owners == seeds,
        ),
        Check(
            "attention that all heads at once have on the strongest group before A_1 is left, least over seeds",
            seen.together,
            "competitive: heads converge on the most statistically dominant pattern",
            seen.together > 0.5,
        ),
    ]
