"""A finished run: what it was, when its attention became sparse, and its curves."""

import dataclasses
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
from ..models import Model, Transformer
from ..tasks import Groups, Task

_PLACE = re.compile(r"(_\d+)+$")


class Result(NamedTuple):
    """One finished run."""

    run: Run
    emergence: Emergence
    """Of the test loss, or in recall the test accuracy, at the run's own threshold."""
    steps: int
    """How many were trained."""
    failed_step: int | None
    provenance: Mapping[str, Any]
    curves: Mapping[str, np.ndarray] | None
    """As in [`emergo.engine.History`][]; None where only the outcome was kept."""

    @classmethod
    def of(cls, history: History) -> "Result":
        config = history.run.config
        direction = "above" if config.task.rises else "below"
        found = emergence(history.curves["step"], history.curves[config.task.metric], config.threshold, direction)
        if history.state == "failed" and found.state != "reached":
            found = Emergence(float("nan"), float("nan"), float("nan"), "failed")
        provenance = {"version": __version__, "jax": jax.__version__, "device": history.device}
        return cls(history.run, found, int(history.curves["step"][-1]), history.failed_step, provenance, history.curves)


def result_row(result: Result) -> dict[str, Any]:
    """A run as one row of a table: its axes, its seed, its plateau."""
    config, found = result.run.config, result.emergence
    task, model, optimizer = config.task, config.model, config.optimizer
    return {
        "identity": result.run.identity,
        **_flat(dataclasses.asdict(task)),
        **{name: value for name, value in dataclasses.asdict(model).items() if name != "positions"},
        **({"positions": model.positions} if isinstance(model, Transformer) else {"samples": config.samples}),
        "optimizer": optimizer.method,
        "learning_rate": optimizer.learning_rate,
        "batch": config.batch,
        "precision": config.precision,
        "threshold": config.threshold,
        "seed": result.run.seed,
        "plateau": found.time,
        "plateau_low": found.low,
        "plateau_high": found.high,
        "censored": found.censored,
        "state": found.state,
        "steps": result.steps,
        "failed_step": result.failed_step,
        "device": result.provenance.get("device"),
    }


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a task as cells of a table: those of a part beside the others, tuples as text."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        found |= _flat(value) if isinstance(value, dict) else {name: str(value) if isinstance(value, tuple) else value}
    return found


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
                fields["groups"] = Groups(**{name: _tupled(value) for name, value in fields["groups"].items()})
            made[part] = named[fields.pop("kind", "")](**fields)
        return Run(Config(**made, **config), data["seed"])
    except (KeyError, TypeError) as error:
        raise InputError(f"this is not a run of this version ({error})") from None


def _tupled(value: Any) -> Any:
    """Lists of plain data as the tuples they were."""
    return tuple(map(_tupled, value)) if isinstance(value, list) else value
