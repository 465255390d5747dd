"""Runs over a grid."""

import dataclasses
import itertools
from collections.abc import Sequence

from ..engine import Config, Run


def grid_runs(
    base: Config,
    seeds: int,
    *,
    length: Sequence[int],
    dim: Sequence[int],
    burst: Sequence[int] = (1,),
    repeat: Sequence[float] = (0.0,),
    learning_rate: Sequence[float] | None = None,
) -> list[Run]:
    """Every combination with every seed, the hardest first, so that a group does not wait for a late beginner."""
    cells = list(itertools.product(length, dim, burst, repeat, learning_rate or (base.optimizer.learning_rate,)))
    cells.sort(key=lambda c: (c[1], c[0] / c[2], -c[3], -c[4]), reverse=True)
    runs = []
    for (T, d, B, p, rate), seed in itertools.product(cells, range(seeds)):
        task = dataclasses.replace(base.task, length=T, dim=d, burst=B, repeat=p)
        optimizer = dataclasses.replace(base.optimizer, learning_rate=rate)
        runs.append(Run(dataclasses.replace(base, task=task, optimizer=optimizer), seed))
    return runs
