"""What a figure is: a computation with presets, its laws and checks beside the published numbers, and a plot."""

import dataclasses
import json
import math
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Plot

from .. import __version__
from .._errors import unknown
from .._files import output_folder, staged
from .._style import save, style
from ..measure import Agreement, Law, Published, compare

Preset = Literal["paper", "laptop", "smoke"]
Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done."""


@dataclasses.dataclass(frozen=True)
class Check:
    """Something the paper shows that is not a law: a measured value, what it is held against, and the verdict."""

    name: str
    measured: Any
    published: Any
    agrees: bool | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A fitted law with its published counterpart."""

    name: str
    law: Law
    published: Published | None = None
    agreement: Agreement | None = None

    @classmethod
    def of(cls, name: str, law: Law, table: pd.DataFrame, published: Published, differs: str | None) -> "Comparison":
        return cls(name, law, published, compare(law, table, published, differs))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What making a figure yields."""

    tables: Mapping[str, pd.DataFrame]
    plot: Plot
    laws: Sequence[Comparison] = ()
    checks: Sequence[Check] = ()
    precision: str = "float64"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure that `emergo figure` can make."""

    id: str
    shows: str
    presets: Mapping[Preset, Any]
    """The settings of each preset."""
    make: Callable[[Any, Progress], Outcome]
    seconds: Mapping[Preset, float]
    """What each preset took on two CPU cores, compilation included."""
    shrunk: Mapping[Preset, str] = dataclasses.field(default_factory=dict)
    """How a preset differs from the paper's setting; no verdict is given on its laws and checks."""


def run_figure(
    figure: Figure, preset: str, out: Path | str, progress: Progress = lambda what, share: None
) -> dict[str, Any]:
    """Makes a figure and writes it: `<id>.svg`, `<id>.png`, `<id>.<table>.parquet` and, last, `<id>.json`.

    **Returns:**

    The content of the JSON file, with `files` as paths that start with `out` (in the file itself they are names beside it).
    """
    if preset not in get_args(Preset):
        raise unknown("preset", preset, get_args(Preset))
    folder = output_folder(Path(out) / Path(figure.id).parent)
    start = time.monotonic()
    with style():
        outcome = figure.make(figure.presets[preset], progress)
    report = describe(figure, preset, outcome)
    name = Path(figure.id).name
    with staged(folder) as stage:
        save(outcome.plot, stage / name)
        for table_name, table in outcome.tables.items():
            table.to_parquet(stage / f"{name}.{table_name}.parquet", index=False)
        files = sorted(f.name for f in stage.iterdir()) + [f"{name}.json"]
        report = report | {"files": files, "seconds": round(time.monotonic() - start, 2)}
        (stage / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    return report | {"files": [str(folder / f) for f in files]}


def made_preset(figure: Figure, out: Path | str) -> str | None:
    """The preset of the figure that lies in `out`, if there is one."""
    try:
        return json.loads((Path(out) / f"{figure.id}.json").read_text())["preset"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def describe(figure: Figure, preset: Preset, outcome: Outcome) -> dict[str, Any]:
    """The JSON object of a figure, without its files and seconds."""
    device = jax.devices()[0]
    judged = preset not in figure.shrunk
    return plain(
        {
            "schema": 1,
            "figure": figure.id,
            "shows": figure.shows,
            "preset": preset,
            "laws": [describe_law(c) for c in outcome.laws],
            "checks": [dataclasses.asdict(c) | ({} if judged else {"agrees": None}) for c in outcome.checks],
            "provenance": {
                "version": __version__,
                "commit": commit(),
                "device": device.device_kind if device.platform != "cpu" else f"cpu ({platform.machine()})",
                "precision": outcome.precision,
                "jax": jax.__version__,
            },
        }
    )


def law_json(law: Law) -> dict[str, Any]:
    """A law as plain data."""
    fields = ("C", "exponents", "ci95", "ci_kind", "r2", "spread", "runs", "censored", "failed", "method")
    beside = law.with_censored
    return plain(
        {"formula": law.formula}
        | {name: getattr(law, name) for name in fields}
        | ({"with_censored": law_json(beside)} if beside else {})
    )


def describe_law(comparison: Comparison) -> dict[str, Any]:
    published, agreement = comparison.published, comparison.agreement
    printed = None
    if published:
        parts = " ".join(f"{n}^{v:g}" for n, v in published.exponents.items())
        printed = {
            "source": published.source,
            "formula": f"{comparison.law.y} = {published.C:.3g} {parts}",
            "C": published.C,
            "exponents": published.exponents,
            "ci95": None,
            "r2": published.r2,
        }
    return (
        {"name": comparison.name}
        | law_json(comparison.law)
        | {
            "published": printed,
            "level": agreement.level if agreement else None,
            "agrees": agreement.agrees if agreement else None,
            "why": agreement.why if agreement else "nothing is published to set beside it",
        }
    )


def plain(value: Any) -> Any:
    """Data that JSON can hold; a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value


def commit() -> str | None:
    """The commit of the checkout that the package runs from, if it runs from one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
