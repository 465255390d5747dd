"""Runs over a grid."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from ..engine import Config, Run
from ..tasks import MarkovChain


def hardness(config: Config) -> tuple[Any, ...]:
    """Larger for a config whose plateau is longer, as far as theory tells: by dim, length over burst, repeat and rate."""
    task = config.task
    burst, repeat = (1, 0) if isinstance(task, MarkovChain) else (task.burst, task.repeat)
    return (task.inputs, task.length / burst, -repeat, -config.optimizer.learning_rate)


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
    configs = []
    for T, d, B, p, rate in itertools.product(length, dim, burst, repeat, learning_rate or (base.optimizer.learning_rate,)):
        task = dataclasses.replace(base.task, length=T, dim=d, burst=B, repeat=p)
        optimizer = dataclasses.replace(base.optimizer, learning_rate=rate)
        configs.append(dataclasses.replace(base, task=task, optimizer=optimizer))
    configs.sort(key=hardness, reverse=True)
    return [Run(config, seed) for config, seed in itertools.product(configs, range(seeds))]
