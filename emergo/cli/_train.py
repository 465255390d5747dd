"""`emergo train`: one study from the command line. Its options are the fields of the task, model and optimizer that it names.

It has a parser of its own, since tyro would have to know these types before it reads which they are.
"""

import argparse
import dataclasses
import functools
import inspect
import json
import re
import time
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import studies
from .._errors import InputError, unknown
from .._identity import canonical, type_name
from .._json import to_jsonable
from .._pytree import Pytree, fields
from .._terminal import cell_table, console, print_json
from ..engine import Config, Optimizer
from ..models import Model
from ..studies._description import find_function, known_types
from ..tasks import Task
from ._run import (
    announce_plugins,
    check_positive,
    exit_if_all_failed,
    find_writer,
    parse_pairs,
    parse_value,
    print_end,
    train_studies,
)

DESCRIPTION = """Train a grid of runs at once and say when their attention became sparse.

Every field of the task, the model, the optimizer and the training is an option; several values of one span the grid.
Values are written as in a study file: 4, 1e-3, true, null, [1,2], or a table for a schedule, {"type": "Ramp", ...}. The
defaults are small, for two cores; zucchet2025 has --layers 2 --heads 4 --width 256 --learning-rate 1e-4 --steps 50000.
Every run is kept in OUT as soon as it ends and is never trained again; after an interrupt the same command goes on."""
LAPTOP: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "SingleLocation": {"length": [32], "dim": [4, 8, 16], "position": ["random"], "indicator": [True], "special": ["draw"]},
    "Transformer": {"layers": [1], "heads": [1], "width": [64]},
    "Optimizer": {"learning_rate": [5e-4]},
    "Config": {"steps": [5000]},
}
"""Defaults that two cores train in a minute, where they differ from those of the types."""
NO_OPTIONS = {"Config": ("task", "model", "optimizer", "interventions", "probes"), "Optimizer": ("name", "options")}
"""Fields that are chosen otherwise, or need a study file."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message)


@dataclasses.dataclass
class Setting:
    """A field that is an option."""

    path: tuple[str, ...]  # from the part on, e.g. task, groups, spans
    kind: Any  # its annotation
    default: Any  # MISSING where it has to be given
    small: Sequence[Any] = ()  # values for two cores, where they are others
    help: str = ""
    within: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # what of a part it belongs to, as it is by default
    option: str = ""


def train(arguments: Sequence[str]) -> None:
    """Runs `emergo train` with these words."""
    begun = time.monotonic()
    own, study = read_study([word.replace("_", "-") if re.match("--[a-z]", word) else word for word in arguments])
    folder = studies.StudyFolder(own.out)
    trained = train_studies(folder, study, find_writer(folder, study, own), own)
    if trained is None:
        return
    table = study.read(own.out, curves=False).table
    cells = studies.cell_summary(table, study.axes, [study.values_of(run) for run in study.runs])
    if own.json:
        rows = table.to_dict("records")
        print_json({"runs": rows, "cells": cells, "complete": trained[1].complete, "out": str(own.out)})
    else:
        if cells:
            console(wide=True).print(cell_table(cells, study.axes))
        print_end(folder, *trained, time.monotonic() - begun)
    exit_if_all_failed(trained[1])


def read_study(arguments: Sequence[str]) -> tuple[argparse.Namespace, Any]:
    """The options of the command itself, and the study that the others describe."""
    chosen, _ = _own_parser().parse_known_args(arguments)
    plugins = [str(Path(name).resolve()) if name.endswith(".py") else name for name in chosen.plugins]
    announce_plugins(plugins)
    studies.load_plugins(plugins)
    task, model = _find(chosen.task, Task, "task"), _find(chosen.model, Model, "model")
    small = task.__name__ == "SingleLocation"
    groups = {
        _words(task): list(_settings(("task",), task, small)),
        _words(model): list(_settings(("model",), model, small)),
        chosen.optimizer: [*_settings(("optimizer",), Optimizer), *_optimizer_settings(chosen.optimizer)],
        "training": list(_settings((), Config)),
    }
    settings = [setting for group in groups.values() for setting in group]
    own, left = _parser(groups, settings).parse_known_args(arguments)
    if left:
        known = [f"--{name.replace('_', '-')}" for name in vars(chosen)] + [setting.option for setting in settings]
        raise unknown("option", left[0], known)
    check_positive(n_parallel=own.n_parallel, seconds=own.seconds)
    data: dict[str, Any] = {"name": own.name, "plugins": plugins, "slurm": dict(parse_pairs("--slurm", own.slurm)), "train": {}}
    data |= {"task": {"type": type_name(task)}, "model": {"type": type_name(model)}, "optimizer": {"name": chosen.optimizer}}
    data |= {"grid": {}, "seeds": own.seeds[0] if len(own.seeds) == 1 else own.seeds}
    data |= {} if own.keep is None else {"keep": own.keep or True}
    missing = [setting.option for setting in settings if not _set(data, setting, own, settings)]
    if missing:
        raise InputError(f"{task.__name__} with {model.__name__} needs {' and '.join(missing)}")
    study = studies.Study.from_data(data)
    learned, thresholds = study.base.task.learned, [config.threshold for config in study.configs]
    if learned is not None and learned.metric == "loss" and any(isinstance(t, float) and t <= 0 for t in thresholds):
        raise InputError("--threshold must be positive: no test loss comes to less; null trains all steps")
    return own, study


def _set(data: dict[str, Any], setting: Setting, own: argparse.Namespace, settings: Sequence[Setting]) -> bool:
    """Puts the values of a setting into the tables of a study file: the first into its part, several also into the grid. Says
    whether it has one, if only by default."""
    values = getattr(own, ".".join(setting.path))
    if values is None:
        return setting.default is not dataclasses.MISSING
    if not values and setting.kind is not bool:
        raise InputError(f"{setting.option} needs at least one value")
    values = list({json.dumps(value): value for value in values or [True]}.values())  # each once
    *parts, name = setting.path
    table = data[parts[0]] if parts else data["train"]
    for part in parts[1:]:
        table = table.setdefault(part, dict(setting.within))
    table[name] = values[0]
    if len(values) > 1:
        shared = sum(other.path[-1] == name for other in settings) > 1 or (parts == ["optimizer"] and name != "learning_rate")
        data["grid"][".".join(setting.path) if shared else name] = values
    return True


def _parser(groups: Mapping[str, Sequence[Setting]], settings: Sequence[Setting]) -> _Parser:
    """An option for every setting; one whose name is not its own is given with its path."""
    wide = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=32, width=120)
    usage = "emergo train [--task TASK] [--model MODEL] [--optimizer NAME] [options]"
    own = _own_parser()
    parser = _Parser(usage=usage, description=DESCRIPTION, allow_abbrev=False, formatter_class=wide, parents=[own])
    taken = [*vars(own.parse_args([])), *(setting.path[-1] for setting in settings)]
    for title, members in groups.items():
        group = parser.add_argument_group(title)
        for setting in members:
            name, dest = setting.path[-1], ".".join(setting.path)
            option = (dest if taken.count(name) > 1 else name).replace("_", "-")
            setting.option = f"--{option}"
            usual = setting.small or ([] if setting.default is dataclasses.MISSING else [setting.default])
            words = f"{setting.help or name.replace('_', ' ')} ({' '.join(map(_shown, usual)) or 'required'})"
            choices = typing.get_args(setting.kind) if typing.get_origin(setting.kind) is typing.Literal else ()
            metavar = "|".join(map(str, choices)) or ("true|false" if setting.kind is bool else "VALUE")
            form = {"nargs": "*", "type": parse_value, "default": setting.small or None, "metavar": metavar}
            group.add_argument(setting.option, dest=dest, help=words.replace("%", "%%"), **form)
            if setting.kind is bool:
                group.add_argument(f"--no-{option}", dest=dest, action="store_const", const=[False], help=argparse.SUPPRESS)
    return parser


def _own_parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    add = parser.add_argument_group("the study").add_argument
    add("--plugins", nargs="+", default=[], metavar="FILE", help="Python files or modules that define types used here")
    add("--task", default="SingleLocation", help="single-location, recall, markov-chain, ..., or module:Class of a plugin")
    add("--model", default="Transformer", help="transformer, minimal-attention, ..., or module:Class of a plugin")
    add("--optimizer", default="adam", help="an optimizer of Optax by its name, or module:function of a plugin")
    add("--seeds", nargs="+", type=parse_value, default=[3], help="how many runs each cell has, or which seeds (3)")
    add("--keep", nargs="*", type=parse_value, metavar="STEP", help="keep parameters: at these steps, or log-spaced ones")
    add("--name", default="train", help="the name of the study (train)")
    add("--out", type=Path, default=Path("runs"), metavar="DIR", help="folder that keeps the study (runs)")
    add("--on", choices=("local", "slurm"), default="local", help="train here, or as an array job of Slurm")
    add("--slurm", nargs="+", default=[], metavar="NAME=VALUE", help="what to ask Slurm for, e.g. minutes=60 partition=gpu")
    add("--n-parallel", type=int, metavar="N", help="runs of one program to train at once; by default what memory holds")
    add("--seconds", type=float, metavar="N", help="stop after so many seconds; the same command goes on")
    add("--log", choices=("none", "tensorboard", "wandb"), default="none", help="also write curves for these viewers")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def _find(name: str, kind: type, what: str) -> type:
    """The type of that name: as in study files, or `single-location` for `SingleLocation`."""
    known = known_types(kind)
    same = [cls for full, cls in known.items() if name in (full, _words(cls), cls.__name__)]
    if not same:
        raise unknown(what, name, [full if ":" in full else _words(cls) for full, cls in known.items()])
    return same[-1]


def _words(cls: type) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()


def _shown(value: Any) -> str:
    """A value as it would be written on the command line."""
    return value if isinstance(value, str) else json.dumps(to_jsonable(value), separators=(",", ":"))


def _settings(path: tuple[str, ...], cls: type, small: bool = True, part: Any = None) -> Iterator[Setting]:
    """The fields of a type, and of the parts that it holds. `part`: an object whose values are the defaults."""
    hints, helps, within = typing.get_type_hints(cls), argument_helps(cls), {} if part is None else canonical(part)
    values = LAPTOP.get(cls.__name__, {}) if small else {}
    for field in fields(cls):
        default = getattr(part, field.name) if part is not None else field.default
        if field.name in NO_OPTIONS.get(cls.__name__, ()):
            continue
        if isinstance(default, Pytree) and not field.metadata.get("per_run"):
            yield from _settings((*path, field.name), type(default), False, default)
            continue
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        kind, words = hints[field.name], helps.get(field.name, "")
        yield Setting((*path, field.name), kind, default, values.get(field.name, ()), words, within)


def _optimizer_settings(name: str) -> Iterator[Setting]:
    """The options that the optimizer's own function has."""
    factory = find_function(name, "--optimizer") if ":" in name else Optimizer(name).factory
    for option, parameter in inspect.signature(factory).parameters.items():
        if option != "learning_rate" and parameter.kind is not parameter.VAR_KEYWORD:
            default = dataclasses.MISSING if parameter.default is parameter.empty else parameter.default
            yield Setting(("optimizer", option), type(parameter.default), default)


def argument_helps(cls: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of each argument."""
    helps: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for entry in re.split(r"^- ", inspect.cleandoc(base.__doc__ or ""), flags=re.MULTILINE)[1:]:
            names, _, words = entry.partition(": ")
            words = re.sub(r"\[?`([^`]*)`\]?(\[\])?", r"\1", " ".join(words.partition("\n\n")[0].split()))
            helps |= dict.fromkeys(re.findall(r"`(\w+)`", names), words)
    return helps
