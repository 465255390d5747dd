"""What the first version wrote, in the words of this one. Reading it needs neither JAX nor pandas.

Numbers have not changed since, only names: a run of the first version is the run of this one with the same fields. Stores,
studies and records are read as they are; `migrate` gives a folder the names of this version once and for all.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._errors import InputError
from .._files import as_storage_error, atomic_write, flush
from .._json import digest

CURVES = {"excess": "kl_teacher", "divergences": "kl_references", "lags": "attention_by_lag", "restricted": "kl_contexts"}
"""Curves that have another name now."""

_GROUPS = {"spans": [2, 2, 2], "importance": 1.7, "strongest": "near", "stride": None, "weights": None}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "SingleLocation": {"burst": 1, "repeat": 0.0, "position": "last", "indicator": False, "special": "basis"},
    "Recall": {"burst": 1.0, "repeat": 0.0, "placement": "once"},
    "MarkovChain": {"groups": {"type": "Groups"}, "vocabulary": 50, "temperature": 0.1, "generated": 20, "prefix": None},
    "Groups": _GROUPS,
    "Transformer": {
        "layers": 2,
        "heads": 4,
        "width": 256,
        "mlp_factor": 4,
        "norm": "none",
        "mask": "none",
        "activation": "relu",
        "attention": "softmax",
        "initial": "pytorch",
        "positions": "sinusoidal",
        "skip": True,
        "mlp": True,
    },
    "MinimalAttention": {"heads": 3, "layers": 1, "start": "small", "scale": 1e-9, "context": None},
    "ChainTransformer": {
        "heads": 3,
        "width": 255,
        "hidden": 64,
        "layers": 1,
        "dropout": 0.1,
        "context": None,
        "dropout_every": None,
        "start": None,
    },
}
"""The fields of that version's classes that had defaults; they are this version's too."""
_TYPES = {
    "task": {"": "SingleLocation", "recall": "Recall", "markov_chain": "MarkovChain"},
    "model": {"": "Transformer", "minimal_attention": "MinimalAttention", "chain_transformer": "ChainTransformer"},
}
_FRACTIONS = ("repeat", "importance", "temperature", "scale", "dropout", "weights")
"""Fields that may hold a fraction: 1 and 1.0 are the same there."""
_ADAM = {"b1": 0.9, "b2": 0.999, "eps": 1e-8}
_OPTIONS: dict[str, dict[str, Any]] = {"adam": _ADAM, "adamw": _ADAM | {"weight_decay": None}, "sgd": {"momentum": 0.0}}
"""The options of a method with Optax's defaults; None: that version had another, and it is always written."""
_TRAINING = {"batch": ("batch", 32), "steps": ("steps", 50_000), "beyond": ("overtrain", 0.0), "tests": ("n_test", 128)}
_TRAINING |= {"samples": ("n_train", None)}


def _number(kind: str, name: str, value: Any) -> Any:
    """A value in the form that this version gives it."""
    if isinstance(value, list | tuple):
        return [_number(kind, name, item) for item in value]
    fraction = name in _FRACTIONS or (kind, name) == ("Recall", "burst")
    return float(value) + 0.0 if fraction and value is not None else value  # -0.0 is 0.0


def _part(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A task, a model or groups as this version describes them: what has its default is left out."""
    part: dict[str, Any] = {"type": kind}
    for name, given in fields.items():
        value = _part("Groups", given) if name == "groups" else _number(kind, name, given)
        if name not in _DEFAULTS[kind] or value != _DEFAULTS[kind][name]:
            part[name] = value
    return part


def _optimizer(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """An optimizer as this version describes it, and its options."""
    method = given["method"]
    options = {name: float(given[name]) for name, usual in sorted(_OPTIONS[method].items()) if given[name] != usual}
    described: dict[str, Any] = {"type": "Optimizer"} | ({} if method == "adam" else {"name": method})
    described |= {} if given["learning_rate"] == 1e-4 else {"learning_rate": float(given["learning_rate"])}
    described |= {} if given.get("clip") is None else {"clip": float(given["clip"])}
    return described | ({"options": [[name, value] for name, value in options.items()]} if options else {}), options


def upgraded_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A config of the first version as this one describes it, and its fields as cells of a table."""
    described, columns = {}, {}
    for part, types in _TYPES.items():
        fields = dict(config[part])
        kind = types[fields.pop("kind", "")]
        if kind in ("MinimalAttention", "ChainTransformer"):  # their sizes follow from the task
            fields = {name: value for name, value in fields.items() if name not in ("length", "vocabulary")}
        described[part] = _part(kind, fields)
        columns = _flat(_DEFAULTS[kind] | fields) | columns
    described["optimizer"], options = _optimizer(config["optimizer"])
    threshold = float(config["threshold"])
    never = described["task"]["type"] == "MarkovChain" and threshold <= 0
    described |= {"precision": config["precision"], "threshold": None if never else threshold}
    for name, (new, usual) in _TRAINING.items():
        if config.get(name) is not None and config[name] != usual:
            described[new] = float(config[name]) if new == "overtrain" else config[name]
    if config.get("windows"):
        described["probes"] = [_contexts(config["windows"])]
    columns |= {"optimizer": config["optimizer"]["method"], "learning_rate": config["optimizer"]["learning_rate"]} | options
    columns |= {"batch": config["batch"], "precision": config["precision"], "threshold": described["threshold"]}
    return described, columns | {name: described[name] for name in ("n_train", "overtrain") if name in described}


def _contexts(windows: Any) -> dict[str, Any]:
    """The probe that has taken the place of `windows`."""
    return {"type": "ContextPredictors", "contexts": list(windows)}


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as cells of a table."""
    columns: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "groups":
            columns |= _flat(_GROUPS | dict(value))
        elif name == "weights" and value is not None:
            columns[name] = str([tuple(map(float, weights)) for weights in value])
        else:
            columns[name] = str(value) if isinstance(value, list) else value
    return columns


def upgraded_identity(config: Mapping[str, Any], seed: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The identity of a run of the first version in this one, the run as plain data, and its columns."""
    described, columns = upgraded_config(config)
    run = {"semantics": 1, "config": described, "seed": seed}
    return digest(run), run, columns


def upgraded_run(content: Mapping[str, Any]) -> dict[str, Any]:
    """A `run.json` of the first version in the form of this one; the identity stays, since it names the folder."""
    if content["semantics"] != 1:
        raise ValueError(f"semantics {content['semantics']}")
    _, run, columns = upgraded_identity(content["config"], content["seed"])
    outcome = dict(content["outcome"])
    if run["config"]["threshold"] is None and outcome["state"] == "censored":
        outcome |= {"state": "trained", "time": None, "low": None, "high": None}
    upgraded = {"schema": 2, "identity": content["identity"], **run, "columns": columns, "outcome": outcome}
    return upgraded | {"curves": [], "provenance": content["provenance"]}


def renamed_curve(column: str) -> str:
    """A column of curves by its name in this version: `lags_0_1_2` is `attention_by_lag_0_1_2`."""
    name = re.sub(r"(_\d+)+$", "", column)
    return CURVES.get(name, name) + column[len(name) :]


# Studies.


def is_version_1(folder: Path) -> bool:
    """Whether a folder holds a study of the first version that was not migrated, or not to the end."""
    return os.path.isfile(folder / "study.json")


def upgraded_plan(content: Mapping[str, Any]) -> dict[str, Any]:
    """A plan of the first version in the form of this one, for reading.

    Its runs keep the identities that their folders have. Their configs are not in such a plan: they follow from the study.
    """
    units = [{"id": unit["id"], "runs": [[run[0], -1, *run[1:]] for run in unit["runs"]]} for unit in content["units"]]
    axes = [_AXES.get(name, name) for name in content["axes"]]
    return {"schema": 2, "study": upgraded_study(content["study"]), "axes": axes, "configs": [], "units": units}


_AXES = {"method": "name", "beyond": "overtrain", "tests": "n_test", "samples": "n_train"}


def upgraded_study(study: Mapping[str, Any]) -> dict[str, Any]:
    """The plain data of a study with the tables of this version."""
    base = dict(study["base"])
    parts: dict[str, Any] = {}
    for part, types in _TYPES.items():
        fields = dict(base.pop(part))
        kind = fields.pop("kind", "")
        parts[part] = {"type": types["" if kind in ("single_location", "transformer") else kind]} | fields
    parts["optimizer"] = _optimizer(base.pop("optimizer"))[0]
    windows = base.pop("windows", None)
    train = {_TRAINING.get(name, (name,))[0]: value for name, value in (base | dict(study["stop"])).items()}
    if parts["task"]["type"] == "MarkovChain" and train.get("threshold", 1) <= 0:
        train["threshold"] = "none"
    more = {name: study[name] for name in ("name", "seeds", "retries", "unit", "slurm", "law") if name in study}
    if windows:
        train["probes"], more["plugins"] = [_contexts(windows)], ["emergo.papers.yuksel2026"]
    axes = {t: {_AXES.get(name, name): values for name, values in study[t].items()} for t in ("grid", "zip", "tune")}
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
        content = json.loads(file.read_bytes())
        study = Study.from_data(upgraded_study(content["study"]))
        planned = [run for unit in content["units"] for run in unit["runs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: not a study of the first version that can be read ({error})") from None
    identities = {(*study.values_of(run), run.seed): run.identity for run in study.runs}
    with as_storage_error(folder):
        for old, seed, *values in planned:
            new = identities.get((*values, seed))
            if new is None:
                raise InputError(f"{file}: the run {old} does not follow from the study; it cannot be migrated")
            _migrate_run(folder / "runs", old, new)
            for path in (folder / "failures").glob(f"{old}.*.json"):
                os.replace(path, path.with_name(path.name.replace(old, new, 1)))
        for checkpoint in (folder / "checkpoints").glob("*"):
            shutil.rmtree(checkpoint, ignore_errors=True)
        (folder / "studies").mkdir(exist_ok=True)
        plan = make_plan(study.runs, study.axes, study.data(), study.unit, study.values_of)
        StudyFolder(folder).write(plan._replace(key="version-1"))
        os.replace(file, folder / "study-version-1.json")
    return len(planned)


def _migrate_run(runs: Path, old: str, new: str) -> None:
    """One that cannot be read keeps its name, and is trained again."""
    import pyarrow.parquet as pq

    path = runs / old
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        content = json.loads((path / "run.json").read_bytes())
        if "schema" not in content:
            columns = pq.read_schema(path / "curves.parquet").names
            names = sorted({re.sub(r"(_\d+)+$", "", renamed_curve(column)) for column in columns})
            upgraded = upgraded_run(content) | {"identity": new, "curves": names}
            atomic_write(path / "run.json", json.dumps(upgraded, indent=1) + "\n")
        os.replace(path, runs / new)
        flush(runs)
