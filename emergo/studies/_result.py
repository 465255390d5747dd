"""A finished run: what it was, when its attention became sparse, and its curves."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
import pandas as pd

from .. import __version__
from .._errors import InputError
from ..engine import KINDS, SEMANTICS, Config, History, Optimizer, Run
from ..measure import Emergence, emergence
from ..models import Model
from ..tasks import Groups, Task
from ._fields import tupled
from ._outcomes import outcome_row, run_content

_PLACE = re.compile(r"(_\d+)+$")


class Result(NamedTuple):
    """One finished run."""

    run: Run
    emergence: Emergence
    """Of the test loss, in recall the test accuracy, for a Markov chain its KL from the teacher, at the run's own threshold."""
    steps: int
    """How many were trained."""
    failed_step: int | None
    provenance: Mapping[str, Any]
    curves: Mapping[str, np.ndarray] | None
    """As in [`emergo.engine.History`][]; None where only the outcome was kept."""
    reason: str | None = None
    """Why it failed."""

    @classmethod
    def of(cls, history: History) -> "Result":
        """What became of a run that the engine has trained."""
        config = history.run.config
        direction = "above" if config.task.rises else "below"
        found = emergence(history.curves["step"], history.curves[config.task.metric], config.threshold, direction)
        reason = None
        if history.state == "failed" and found.state != "reached":
            found = _FAILED
            reason = f"the loss was not finite at step {history.failed_step}"
        steps = int(history.curves["step"][-1])
        return cls(history.run, found, steps, history.failed_step, _provenance(history.device), history.curves, reason)

    @classmethod
    def failed(cls, run: Run, reason: str, device: str) -> "Result":
        """A run that could not be trained at all."""
        return cls(run, _FAILED, 0, None, _provenance(device), None, reason)


_FAILED = Emergence(float("nan"), float("nan"), float("nan"), "failed")


def _provenance(device: str) -> dict[str, Any]:
    return {"version": __version__, "jax": jax.__version__, "device": device}


def result_content(result: Result) -> dict[str, Any]:
    """A result but for its curves, as plain data: what `run.json` holds."""
    outcome = result.emergence._asdict() | {"steps": result.steps, "failed_step": result.failed_step}
    if result.reason is not None:
        outcome["reason"] = result.reason
    return run_content(run_json(result.run), result.run.identity, outcome, result.provenance)


def result_row(result: Result) -> dict[str, Any]:
    """A run as one row of a table: its axes, its seed, its plateau."""
    return outcome_row(result_content(result))


def curve_frame(result: Result) -> pd.DataFrame:
    """The curves of a run as a table, a row an evaluation; a curve of several numbers has columns like `attention_0_1`."""
    columns: dict[str, np.ndarray] = {}
    for name, values in (result.curves or {}).items():
        if values.ndim == 1:
            columns[name] = values
        else:
            for place in np.ndindex(values.shape[1:]):
                columns["_".join([name, *map(str, place)])] = values[(slice(None), *place)]
    return pd.DataFrame(columns)


def curves_from(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """The inverse of [`emergo.studies.curve_frame`][]."""
    shown = frame.drop(columns="identity", errors="ignore").dropna(axis=1, how="all")  # other runs have other curves
    found = {}
    for column in shown.columns:
        name = _PLACE.sub("", column)
        if name == column:
            found[name] = shown[column].to_numpy()
        elif name not in found:
            places = [tuple(map(int, c[len(name) + 1 :].split("_"))) for c in shown.columns if _PLACE.sub("", c) == name]
            values = np.full((len(shown), *(1 + np.max(places, 0))), np.nan, shown[column].to_numpy().dtype)
            for place in places:
                values[(slice(None), *place)] = shown["_".join([name, *map(str, place)])]
            found[name] = values
    return found


def run_json(run: Run) -> dict[str, Any]:
    """A run as plain data."""
    return {"semantics": SEMANTICS, "config": run.config.describe(), "seed": run.seed}


def run_from_json(data: Mapping[str, Any]) -> Run:
    """A run from plain data, as [`emergo.studies.run_json`][] writes it."""
    try:
        if data["semantics"] != SEMANTICS:
            raise InputError(f"this run has semantics {data['semantics']}; this version reads {SEMANTICS}")
        config = dict(data["config"])
        made: dict[str, Any] = {"optimizer": Optimizer(**config.pop("optimizer"))}
        for part, kinds in (("task", Task), ("model", Model)):
            fields = dict(config.pop(part))
            named = {KINDS[kind]: kind for kind in get_args(kinds)}
            if "groups" in fields:
                fields["groups"] = Groups(**{name: tupled(value) for name, value in fields["groups"].items()})
            made[part] = named[fields.pop("kind", "")](**fields)
        return Run(Config(**made, **{name: tupled(value) for name, value in config.items()}), data["seed"])
    except (KeyError, TypeError) as error:
        raise InputError(f"this is not a run of this version ({error})") from None
