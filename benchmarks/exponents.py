"""Further components of the exponents: what the screen of `emergo/exponents` leaves out.

    python -m benchmarks.exponents list
    python -m benchmarks.exponents expected            derived exponents of every part
    python -m benchmarks.exponents train NAME WORK SECONDS RECORDS [--tiny]
    python -m benchmarks.exponents table [RECORDS] [TABLE.csv]

Learning rates that depend on d or on the width, scales of tokens, targets and indicator, Adam's ε
and β₂, sizes of queries and keys, larger d and T, and larger batches, all with the one-layer
Transformer at the end of the path. `train` works as in campaigns.py; all but `wide` are meant for a
CPU. `table` compares recorded exponents (by default of results/exponents-more) with derived ones,
and with the screen's. results/expectations/exponents-more.md says what we expect, and of batches
growing-maps.md.
"""

import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

import emergo as em
from emergo.papers.experiments.exponents import (
    ADAM,
    CELL,
    END,
    SCREEN,
    SGD,
    START,
    Name,
    law_of,
    row_of,
    wide_runs,
)
from emergo.store import Records, read_records
from emergo.theory import assembly_plateau

from .campaign_parts import ScaledLocation
from .campaigns import found, main

FOLDER = Path(__file__).parents[1] / "results" / "exponents-more"
DIMS = SCREEN.dims
LENGTHS: Mapping[Name, tuple[int, ...]] = {SGD: (8, 16), ADAM: (8, 32)}
MIDDLE = 8  # the dim at which scaled quantities have their usual size
SCALED = ScaledLocation(2, 1, position="random", indicator=True, special="draw")
WHOLE = f"path/{END}"
TOY = f"path/{START}"
CONSTANT = "removed/embedding of constant size"
NO_POSITIONS = "removed/positions"


class Part(NamedTuple):
    """A study, and the part of the screen or of this file that it is compared with, or ""."""

    study: em.Study
    reference: str = ""


Parts = Mapping[str, Part]


def base_of(name: Name, variant: str = WHOLE, **changes: Any) -> em.Config:
    return SCREEN.configs(name)[variant].replace(**changes)


def grid(
    config: em.Config,
    name: Name,
    lengths: tuple[int, ...] = (),
    dims: tuple[int, ...] = DIMS,
    seeds: int = 3,
    **by_dim: Any,
) -> em.Study:
    """Return a study over dims and lengths, by default those of the screen and two of its lengths.

    **Arguments:**

    - `by_dim`: values of further fields, one for each dim.
    """
    axes = {"length": lengths or LENGTHS[name]}
    return em.Study.of(config, grid=axes, zip={"dim": dims, **by_dim}, seeds=seeds)


def optimizers() -> Parts:
    """Adam's β₂ and ε, and learning rates that grow with d or fall with the width."""
    parts = {}
    for variant in (WHOLE, CONSTANT, NO_POSITIONS):
        for b2 in (0.9, 0.99):
            config = base_of(ADAM, variant)
            config = config.replace(optimizer=config.optimizer.replace(options={"b2": b2}))
            label = variant.partition("/")[2]
            parts[f"adam b2 {b2:g}, {label}"] = Part(grid(config, ADAM), f"adam {variant}")
    for eps, rate in EPSILONS.items():
        config = base_of(ADAM, optimizer=em.Optimizer("adam", rate, eps=eps))
        parts[f"adam eps {eps:g}"] = Part(grid(config, ADAM), f"adam {WHOLE}")
    for name in (ADAM, SGD):
        config = base_of(name)
        rate = float(config.optimizer.learning_rate)
        rates = tuple(rate * dim / DIMS[-1] for dim in DIMS)
        study = grid(config, name, learning_rate=rates)
        parts[f"{name} rate in proportion to d"] = Part(study, f"{name} {WHOLE}")
    for name in (ADAM, SGD):
        config = base_of(name)
        for width in (24, 64):
            rate = float(config.optimizer.learning_rate) * 16 / width
            slower = config.replace(model__width=width, optimizer__learning_rate=rate)
            label = f"{name} width {width}, rate in proportion to 1/width"
            parts[label] = Part(grid(slower, name), f"{name} {WHOLE}")
    return parts


EPSILONS = {1e-4: 5e-4, 1e-3: 5e-4, 1e-2: 1e-3, 1e-1: 6e-3}
"""Adam's ε, and learning rates at which plateaus are as long as at ε = 0 or as under SGD."""


def scales() -> Parts:
    """Scales of tokens and targets, sizes of queries and keys, and scales of the indicator."""
    parts = {}
    roots = tuple(math.sqrt(dim / MIDDLE) for dim in DIMS)
    ends = tuple(0.1 * root**2 for root in roots)
    axes_of: dict[str, dict[str, Any]] = {
        "tokens": {"tokens": roots},
        "targets": {"targets": roots, "threshold": ends},
    }
    for name in (ADAM, SGD):
        config = base_of(name, task=SCALED)
        for label, axes in axes_of.items():
            study = grid(config, name, **axes)
            parts[f"{name} {label} grow as the root of d"] = Part(study, f"{name} {WHOLE}")
    for size in (2, 8, 128):
        for name in (ADAM, SGD):
            study = grid(base_of(name, model__key_size=size), name)
            parts[f"{name} keys of size {size}"] = Part(study, f"{name} {WHOLE}")
    for marks in (0.5, 2.0):
        for name in (ADAM, SGD):
            study = grid(base_of(name, task=SCALED.replace(marks=marks)), name)
            parts[f"{name} indicator of {marks:g}"] = Part(study, f"{name} {WHOLE}")
    return parts


def memory() -> Parts:
    """Targets that grow with d, for an Adam that forgets the first steps."""
    roots = tuple(math.sqrt(dim / MIDDLE) for dim in DIMS)
    ends = tuple(0.1 * root**2 for root in roots)
    config = base_of(ADAM, task=SCALED)
    config = config.replace(optimizer=config.optimizer.replace(options={"b2": 0.9}))
    study = grid(config, ADAM, targets=roots, threshold=ends)
    label = "adam b2 0.9, targets grow as the root of d"
    return {label: Part(study, f"adam b2 0.9, {END}")}


def indicator() -> Parts:
    """A weak and a strong indicator at a fixed position, under Adam (B.3)."""
    parts = {}
    for marks in (1.0, 16.0, 4.0, 0.25):
        task = SCALED.replace(position="fixed", marks=marks)
        study = grid(base_of(ADAM, task=task), ADAM)
        parts[f"adam fixed position, indicator of {marks:g}"] = Part(study)
    return parts


def ranges() -> Parts:
    """Larger d and T for the toy model and components that move exponents, on a CPU."""
    parts = {}
    for variant in (CONSTANT, WHOLE):
        config = base_of(ADAM, variant)
        parts[f"adam {variant}, T to 128"] = Part(grid(config, ADAM, (32, 128)))
    for variant in (CONSTANT, WHOLE):
        config = base_of(SGD, variant, steps=100_000)
        parts[f"sgd {variant}, d to 24, T to 64"] = Part(grid(config, SGD, (16, 64), (8, 16, 24)))
    for variant in (TOY, "alone/embedding"):
        config = base_of(SGD, variant, model__width=160)
        study = grid(config, SGD, (16, 64), (8, 32, 128), 5)
        parts[f"sgd {variant}, d to 128, T to 64"] = Part(study)
    return parts


def noise() -> Parts:
    """SGD with larger batches, and at T = 64 at half of the rate, where plateaus are too long."""
    parts = {}
    config = base_of(SGD, steps=100_000)
    changed = {
        "batches of 128": config.replace(batch=128),
        "half of the rate": config.replace(
            optimizer__learning_rate=config.optimizer.learning_rate / 2
        ),
    }
    for label, one in changed.items():
        parts[f"sgd T = 64, {label}"] = Part(grid(one, SGD, (64,), (8,)))
    for size in (128, 512):
        study = grid(base_of(SGD, batch=size), SGD, SCREEN.lengths)
        parts[f"sgd batches of {size}"] = Part(study, f"sgd {WHOLE}")
    return parts


def wide() -> Parts:
    """Width 256, d to 128 and T to 256, 5 seeds: needs a GPU. The package has these runs."""
    return {f"width 256, {label}": Part(one.study) for label, one in wide_runs().items()}


CAMPAIGNS: Mapping[str, Callable[[], Parts]] = {
    "optimizers": optimizers,
    "scales": scales,
    "memory": memory,
    "indicator": indicator,
    "ranges": ranges,
    "noise": noise,
    "wide": wide,
}


def derived(study: em.Study) -> pd.DataFrame:
    """Return the derived plateau of every cell; without rows at a fixed position."""
    rows = []
    for config in study.configs:
        task: Any = config.task
        model: Any = config.model
        rate = float(config.optimizer.learning_rate)
        if task.position == "fixed":
            continue
        scaled = {}
        if isinstance(task, ScaledLocation):
            scaled = {name: getattr(task, name) for name in ("tokens", "marks", "targets")}
        optimizer: Name = ADAM if config.optimizer.name == ADAM else SGD
        epsilon = float(config.optimizer.given.get("eps", 0.0))
        steps = assembly_plateau(
            *(model, task.length, task.dim, rate, optimizer), epsilon=epsilon, **scaled
        )
        rows.append({"length": task.length, "dim": task.dim, "plateau": steps})
    return pd.DataFrame(rows, columns=[*CELL, "plateau"])


def expected() -> pd.DataFrame:
    """Return the derived exponents and the range of derived plateaus of every part."""
    rows = []
    for make in CAMPAIGNS.values():
        for label, part in make().items():
            plateaus = derived(part.study)
            law = law_of(plateaus)
            if law is not None:
                ends = plateaus["plateau"].min().round(), plateaus["plateau"].max().round()
                rows.append((label, law.exponents["dim"], law.exponents["length"], *ends))
    columns = ["part", "d", "T", "least steps", "most steps"]
    return pd.DataFrame(rows, columns=columns).round(2)


def rows_of(records: Records) -> Iterator[dict[str, Any]]:
    """Yield the exponents of every recorded part, and how they differ from its reference."""
    shipped = read_records()
    screen = SCREEN.own()
    own = {label: part.study for make in CAMPAIGNS.values() for label, part in make().items()}
    for make in CAMPAIGNS.values():
        for label, part in make().items():
            table = found(part.study, shipped if make is wide else records).table
            law = law_of(table) if len(table) else None
            if law is None:
                continue
            row = row_of(label, table, law, derived(part.study))
            if part.reference in screen:
                row |= changes(table, found(screen[part.reference], shipped).table)
            elif part.reference:
                row |= changes(table, found(own[part.reference], records).table)
            yield row


def changes(table: pd.DataFrame, before: pd.DataFrame) -> dict[str, float]:
    """Return the changes of both exponents, from runs paired by seed, with 95% intervals."""
    both = table.merge(before, on=[*CELL, "seed"], suffixes=("", "_before"))
    both = both[~both["censored"] & ~both["censored_before"]]
    law = law_of(both.assign(ratio=both["plateau"] / both["plateau_before"]), "ratio")
    row: dict[str, float] = {}
    if law is None:
        return row
    for term in CELL:
        ends = law.ci95[term]
        names = (f"{term}_change", f"{term}_change_low", f"{term}_change_high")
        row |= dict(zip(names, (law.exponents[term], *ends), strict=True))
    return row


def table(folder: Path, target: Path | None) -> None:
    rows = pd.DataFrame(rows_of(read_records(folder)))
    print(rows.round(2).to_string(index=False))
    if target is not None:
        rows.to_csv(target, index=False, float_format="%.4g")


if __name__ == "__main__":
    if sys.argv[1:2] == ["expected"]:
        print(expected().to_csv(index=False), end="")
    elif sys.argv[1:2] == ["table"]:
        table(
            Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER,
            Path(sys.argv[3]) if len(sys.argv) > 3 else None,
        )
    else:

        def studies_of(make: Callable[[], Parts]) -> Callable[[], dict[str, em.Study]]:
            @functools.wraps(make)
            def studies() -> dict[str, em.Study]:
                return {label: part.study for label, part in make().items()}

            return studies

        main(
            {name: studies_of(make) for name, make in CAMPAIGNS.items()},
            sys.argv[1:],
            __doc__ or "",
        )
