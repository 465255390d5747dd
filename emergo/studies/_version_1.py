"""What the first version wrote, in the words of this one. Reading it needs neither JAX nor pandas.

Numbers have not changed since, only names: a run of the first version is the run of this one with the same fields. Stores,
studies and records are read as they are; `migrate` gives a folder the names of this version once and for all.
"""

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._errors import InputError
from .._files import as_storage_error, atomic_write, flush, read_regular, remove
from .._json import seal, to_jsonable
from ._reader import CHECKPOINT, FAILURE, IDENTITY, LARGE, UNIT, checker, count, list_names, read_json, scalar

CURVES = {"excess": "kl_teacher", "divergences": "kl_references", "lags": "attention_by_lag", "restricted": "kl_contexts"}
"""Curves that have another name now."""

_TYPES = {
    "task": {"": "SingleLocation", "recall": "Recall", "markov_chain": "MarkovChain"},
    "model": {"": "Transformer", "minimal_attention": "MinimalAttention", "chain_transformer": "ChainTransformer"},
}
"""By the `kind` of a part, which the first ones did not have; studies call these `single_location` and `transformer`."""
_LATER = {"MarkovChain": {"prefix": None}, "ChainTransformer": {"dropout_every": None, "start": None}}
"""Fields that came while that version was written; they are left out where they have their default."""
_ADAM = {"b1": 0.9, "b2": 0.999, "eps": 1e-8}
_OPTIONS: dict[str, dict[str, Any]] = {"adam": _ADAM, "adamw": _ADAM | {"weight_decay": None}, "sgd": {"momentum": 0.0}}
"""The options of a method with Optax's defaults; None: that version had another, and it is always written."""
_NAMES = {"method": "name", "beyond": "overtrain", "tests": "n_test", "samples": "n_train"}
"""Axes and options of training that have another name now."""
_PLAN = {"study": dict, "axes": [str], "units": [{"id": UNIT, "runs": [(IDENTITY, count)]}]}


def _parts(config: Mapping[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """The types of task and model, and their fields; sizes of models of chains follow from the task now."""
    parts = {}
    for part, types in _TYPES.items():
        kind = config[part].get("kind", "")
        kind = types["" if kind in ("single_location", "transformer") else kind]
        left_out = ("kind", "length", "vocabulary") if kind in ("MinimalAttention", "ChainTransformer") else ("kind",)
        parts[part] = (kind, {name: value for name, value in config[part].items() if name not in left_out})
    return parts


def _options(optimizer: Mapping[str, Any]) -> dict[str, float]:
    usual = _OPTIONS[optimizer["method"]]
    return {name: float(optimizer[name]) for name in sorted(usual) if optimizer[name] != usual[name]}


def _threshold(kind: str, threshold: float) -> float | None:
    """None where a run trained to its last step: chains had thresholds for this that no run reaches."""
    return None if kind == "MarkovChain" and threshold <= 0 else float(threshold)


def upgraded_run(content: Any) -> Any:
    """A `run.json` of the first version with what this one reads of it; another as it is. The identity names the folder."""
    if "schema" in content:
        return content
    if content["semantics"] != 1:
        raise ValueError(f"semantics {content['semantics']}")
    config, outcome, columns = content["config"], content["outcome"], {}
    for kind, fields in _parts(config).values():
        flat = _LATER.get(kind, {}) | fields | fields.get("groups", {})
        columns = {name: _cell(value) for name, value in flat.items() if name != "groups"} | columns
    optimizer, threshold = config["optimizer"], _threshold(_parts(config)["task"][0], config["threshold"])
    columns |= {"optimizer": optimizer["method"], "learning_rate": optimizer["learning_rate"]} | _options(optimizer)
    columns |= {"batch": config["batch"], "precision": config["precision"], "threshold": threshold}
    columns |= {_NAMES[name]: config[name] for name in ("samples", "beyond") if config.get(name)}
    if threshold is None and outcome["state"] == "censored":
        outcome = outcome | {"state": "trained", "time": None, "low": None, "high": None}
    return content | {"columns": columns, "outcome": outcome, "curves": []}


def _cell(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], list):
        value = [tuple(map(float, inner)) for inner in value]
    return str(value) if isinstance(value, list) else value


@functools.lru_cache(1024)
def renamed_curve(column: str) -> str:
    """A column of curves by its name in this version: `lags_0_1_2` is `attention_by_lag_0_1_2`."""
    name = re.sub(r"(_\d+)+$", "", column)
    return CURVES.get(name, name) + column[len(name) :]


def is_version_1(folder: Path) -> bool:
    """Whether a folder holds a study of the first version that was not migrated, or not to the end."""
    return os.path.isfile(folder / "study.json")


def upgraded_plan(content: Any) -> Any:
    """A plan of the first version in the form of this one, for reading; another as it is. Its runs keep the identities that
    their folders have; their configs follow from the study."""
    if content["schema"] != 1:
        return content
    units = [{"id": unit["id"], "runs": [[run[0], -1, *run[1:]] for run in unit["runs"]]} for unit in content["units"]]
    axes = [_NAMES.get(name, name) for name in content["axes"]]
    return {"schema": 2, "study": upgraded_study(content["study"]), "axes": axes, "configs": [], "units": units}


def upgraded_study(study: Mapping[str, Any]) -> dict[str, Any]:
    """The plain data of a study with the tables of this version."""
    base = dict(study["base"])
    parts: dict[str, Any] = {part: {"type": kind} | fields for part, (kind, fields) in _parts(base).items()}
    given, options = base["optimizer"], _options(base["optimizer"])
    described: dict[str, Any] = {"type": "Optimizer"} | ({} if given["method"] == "adam" else {"name": given["method"]})
    described |= {} if given["learning_rate"] == 1e-4 else {"learning_rate": float(given["learning_rate"])}
    described |= {} if given.get("clip") is None else {"clip": float(given["clip"])}
    parts["optimizer"] = described | ({"options": [list(option) for option in options.items()]} if options else {})
    train = {_NAMES.get(name, name): value for name, value in (base | study["stop"]).items() if name not in parts}
    windows = train.pop("windows", None)
    if _threshold(parts["task"]["type"], train["threshold"]) is None:
        train["threshold"] = "none"
    more = {name: study[name] for name in ("name", "seeds", "retries", "unit", "slurm", "law") if name in study}
    if windows:
        train["probes"] = [{"type": "ContextPredictors", "contexts": list(windows)}]
        more["plugins"] = ["emergo.papers.yuksel2026"]
    axes = {t: {_NAMES.get(name, name): values for name, values in study[t].items()} for t in ("grid", "zip", "tune")}
    return more | parts | {"train": train} | axes


def migrate(folder: Path) -> int:
    """Gives a folder of the first version the names of this one: identities of runs, their `run.json`, failures and the plan.

    Every step is a rename or an atomic write, and what has its new name already is left alone, so that an interrupted migration
    goes on. Checkpoints of that version are removed: their runs begin anew. Returns how many finished runs there are.
    """
    from ._folder import StudyFolder  # these import this module
    from ._plan import make_plan
    from ._study import Study

    file = folder / "study.json"
    try:
        content = read_json(file, checker(_PLAN), most=LARGE)
        study = Study.from_data(upgraded_study(content["study"]))
        planned = [run for unit in content["units"] for run in unit["runs"]]
        if not all(scalar(value) for run in planned for value in run):
            raise ValueError("a run has a value that is no number and no text")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file}: not a study of the first version that can be read ({error})") from None
    runs = {(*study.values_of(run), run.seed): run for run in study.runs}
    StudyFolder(folder).prepare()
    with as_storage_error(folder):
        for old, seed, *values in planned:
            run = runs.get((*values, seed))
            if run is None:
                raise InputError(f"{file}: the run {old} does not follow from the study; it cannot be migrated")
            _migrate_run(folder / "runs", old, run)
            for name in list_names(folder / "failures", FAILURE):
                if name.startswith(old):
                    _migrate_failure(folder / "failures" / name, run.identity)
        for name in list_names(folder / "checkpoints", CHECKPOINT):
            remove(folder / "checkpoints" / name)
        plan = make_plan(study.runs, study.axes, study.data(), study.unit, study.values_of)
        StudyFolder(folder).write(plan._replace(key="version-1"))
        os.replace(file, folder / "study-version-1.json")
    return len(planned)


def _migrate_failure(path: Path, identity: str) -> None:
    """One that cannot be read keeps its name, and counts for none."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        content = read_json(path, checker({"identity": IDENTITY})) | {"identity": identity}
        atomic_write(path.with_name(identity + path.name[len(identity) :]), seal(content))
        path.unlink()


def _migrate_run(runs: Path, old: str, run: Any) -> None:
    """One that cannot be read keeps its name, and is trained again."""
    from .._parquet import parquet_table
    from ._axes import config_columns

    path = runs / old
    with contextlib.suppress(FileNotFoundError, ValueError):
        content = read_json(path / "run.json", checker({"outcome": dict, "provenance": dict}), upgraded_run)
        if "schema" not in content:
            curves = read_regular(path / "curves.parquet", LARGE)
            columns = parquet_table(curves).column_names
            names = sorted({re.sub(r"(_\d+)+$", "", renamed_curve(column)) for column in columns})
            upgraded = {"schema": 3, "identity": run.identity, **run.describe(), "columns": config_columns(run.config)}
            upgraded |= {"outcome": content["outcome"], "curves": names, "provenance": content["provenance"]}
            upgraded |= {"files": {"curves.parquet": hashlib.sha256(curves).hexdigest()}}
            atomic_write(path / "run.json", seal(to_jsonable(upgraded), indent=1))
        os.replace(path, runs / run.identity)
        flush(runs)
