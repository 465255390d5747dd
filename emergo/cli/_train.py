"""Train a grid of runs at once and report when their attention became sparse.

Every field of the task, the model, the optimizer and the training is an option. An option with
several values spans an axis of the grid. Write values as in a study file: 4, 1e-3, true, null,
[1,2], or a table for a schedule, {"type": "Ramp", ...}. The defaults are small, for two cores;
zucchet2025 has --layers 2 --heads 4 --width 256 --learning-rate 1e-4 --steps 50000.

Every run is kept in OUT as soon as it ends and is never trained again. After an interrupt, repeat
the command to continue.
"""
# This docstring is the help text of `emergo train`.
#
# The options depend on the task, the model and the optimizer. So the command line is parsed twice:
# first for the options that choose these types, then for all options.

import dataclasses
import inspect
import json
import re
import time
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, arg

from .. import store
from .. import study as studies
from ..core.errors import InputError, unknown
from ..core.identity import canonical, type_name
from ..core.json import to_jsonable
from ..core.pytree import Pytree, fields
from ..core.terminal import cell_table, console
from ..models import Model
from ..study.description import find_function, known_types
from ..tasks import Task
from ..training import Config, Optimizer
from ._parse import parse
from ._run import (
    TrainingOptions,
    announce_plugins,
    parse_pairs,
    parse_value,
    print_end,
    train_studies,
)

# Defaults by task that two cores train in a minute, where they differ from those of the types.
LAPTOP: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]] = {
    "SingleLocation": {
        "SingleLocation": {
            "length": [32],
            "dim": [4, 8, 16],
            "position": ["random"],
            "indicator": [True],
            "special": ["draw"],
        },
        "Transformer": {"layers": [1], "heads": [1], "width": [64]},
        "Optimizer": {"learning_rate": [5e-4]},
        "Config": {"steps": [5000]},
    },
    "Text": {
        "Text": {"length": [64], "copy": [0.8], "copy_after": ["random"]},
        "Transformer": {
            "layers": [2],
            "heads": [2],
            "width": [64],
            "mlp_factor": [1],
            "mask": ["causal"],
            "norm": ["pre"],
            "activation": ["gelu"],
            "positions": ["rope"],
            "initial": ["normal"],
        },
        "Optimizer": {"learning_rate": [3e-3]},
        "Config": {"steps": [2500]},
    },
}
# Defaults for other tasks.
ELSEWHERE = {name: LAPTOP["SingleLocation"][name] for name in ("Optimizer", "Config")}
# Fields that other options choose, or that need a study file.
NO_OPTIONS = {
    "Config": ("task", "model", "optimizer", "interventions", "probes", "stop", "start"),
    "Optimizer": ("name", "options", "numbers"),
    "Text": ("tokenizer",),
}
UNSET = ("",)  # the value of an option that is not on the command line; no word is empty


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions(TrainingOptions):
    """The study and its types."""

    plugins: tuple[str, ...] = ()  # Python files or modules that define types used here.
    # single-location, recall, markov-chain, ..., or module:Class of a plugin.
    task: str = "SingleLocation"
    # transformer, minimal-attention, ..., or module:Class of a plugin.
    model: str = "Transformer"
    # An optimizer of Optax by its name, or module:function of a plugin.
    optimizer: str = "adam"
    seeds: tuple[str, ...] = ("3",)  # Number of runs per cell, or a list of seeds.
    # Keep parameters at these steps; without a value, at log-spaced steps.
    keep: tuple[str, ...] = UNSET
    name: str = "train"  # Name of the study.
    out: Path = Path("runs")  # Folder that keeps the study.
    slurm: tuple[str, ...] = ()  # Resources of the Slurm job, e.g. minutes=60 partition=gpu.


@dataclasses.dataclass
class Setting:
    """A field of the task, the model, the optimizer or the config as an option."""

    path: tuple[str, ...]  # e.g. task, groups, spans
    kind: Any  # its annotation
    default: Any  # MISSING if required
    small: Sequence[Any] = ()  # values for two cores, if they differ
    help: str = ""
    # The default of the part that holds the field, as plain data.
    within: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    option: str = ""  # e.g. --spans
    axis: str = ""  # name in the grid of a study

    @property
    def field(self) -> str:
        return "__".join(self.path)


def train(arguments: Sequence[str]) -> None:
    """Run `emergo train` with these words."""
    begun = time.monotonic()
    options, study = read_study(arguments)
    folder = store.StudyFolder(options.out)
    trained = train_studies(folder, study, options)
    if trained is None:
        return
    runs = study.read(options.out, curves=False).table
    cells = studies.cell_summary(runs, study.axes, [study.values_of(run) for run in study.runs])
    if options.json:
        result = {"runs": runs.to_dict("records"), "cells": cells, "complete": trained[1].complete}
        print_end(folder, *trained, begun, result | {"out": str(options.out)})
    else:
        console(wide=True).print(cell_table(cells, study.axes))
        print_end(folder, *trained, begun)


def read_study(arguments: Sequence[str]) -> tuple[TrainOptions, Any]:
    """Parse the words after `emergo train`.

    **Returns:** the options that do not depend on the types, and the study that the others
    describe.
    """
    chosen, _ = parse(TrainOptions, arguments, return_unknown_args=True, add_help=False)
    plugins = [
        str(Path(name).resolve()) if name.endswith(".py") else name for name in chosen.plugins
    ]
    announce_plugins(plugins)
    studies.load_plugins(plugins)
    task = _find(chosen.task, Task, "task")
    model = _find(chosen.model, Model, "model")
    small = LAPTOP.get(type_name(task), ELSEWHERE)
    groups = {
        "task": [*_settings(("task",), task, small)],
        "model": [*_settings(("model",), model, small)],
        "optimizer": [
            *_settings(("optimizer",), Optimizer, small),
            *_optimizer_settings(chosen.optimizer),
        ],
        "training": [*_settings((), Config, small)],
    }
    settings = [setting for group in groups.values() for setting in group]
    _name_options(settings)
    hint = f"`emergo train --task {chosen.task} --help` lists them"
    if any(setting.path == ("task", "source") for setting in settings):
        hint += "; --source names the corpus"
    parsed = parse(_options_class(groups), arguments, prog="emergo train", hint=hint)
    options: TrainOptions = parsed.study
    seeds = [parse_value(word) for word in options.seeds]
    data: dict[str, Any] = {
        "name": options.name,
        "plugins": plugins,
        "slurm": dict(parse_pairs("--slurm", options.slurm)),
        "task": {"type": type_name(task)},
        "model": {"type": type_name(model)},
        "optimizer": {"name": options.optimizer},
        "train": {},
        "grid": {},
        "seeds": seeds[0] if len(seeds) == 1 else seeds,
    }
    if options.keep != UNSET:
        data["keep"] = [parse_value(word) for word in options.keep] or True
    missing = []
    for group, members in groups.items():
        for setting in members:
            words = getattr(getattr(parsed, group), setting.field)
            if words != UNSET:
                _set(data, setting, [_read(word, setting.kind) for word in words])
            elif setting.small:
                _set(data, setting, setting.small)
            elif setting.default is dataclasses.MISSING:
                missing.append(setting.option)
    if missing:
        raise InputError(f"{task.__name__} with {model.__name__} needs {' and '.join(missing)}")
    study = studies.Study.from_data(data)
    learned = study.base.task.learned
    losses = [config.threshold for config in study.configs if learned and learned.metric == "loss"]
    if any(isinstance(number, float) and number <= 0 for number in losses):
        raise InputError(
            "--threshold must be positive, because a test loss does not get below 0; null trains "
            "all steps"
        )
    return options, study


def _read(word: str, kind: Any) -> Any:
    """Parse a value of an option; whole numbers may be written as 1e3."""
    value = parse_value(word)
    kinds = typing.get_args(kind) or (kind,)
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if whole and int in kinds and float not in kinds else value


def _set(data: dict[str, Any], setting: Setting, values: Sequence[Any]) -> None:
    """Put the values of an option into the tables of a study file.

    The first value goes into the task, the model, the optimizer or the training. Several values
    also become an axis of the grid.
    """
    if not values and setting.kind is not bool:
        raise InputError(f"{setting.option} needs at least one value")
    values = list({json.dumps(value): value for value in values or [True]}.values())  # unique
    *parts, name = setting.path
    table = data[parts[0]] if parts else data["train"]
    for part in parts[1:]:
        table = table.setdefault(part, dict(setting.within))
    table[name] = values[0]
    if len(values) > 1:
        data["grid"][setting.axis] = values


def _name_options(settings: Sequence[Setting]) -> None:
    """Name each option and its axis after the field; with its path if several share the name."""
    taken = [field.name for field in dataclasses.fields(TrainOptions)]
    taken += [setting.path[-1] for setting in settings]
    for setting in settings:
        *parts, name = setting.path
        ambiguous = taken.count(name) > 1
        setting.axis = ".".join(setting.path) if ambiguous else name
        setting.option = f"--{setting.axis.replace('_', '-')}"
        if parts == ["optimizer"] and name != "learning_rate":
            setting.axis = f"optimizer.{name}"


def _options_class(groups: Mapping[str, Sequence[Setting]]) -> Any:
    """Make the class whose fields are all options of the command, one part per group."""
    parts: list[Any] = [("study", OmitArgPrefixes[TrainOptions], TrainOptions())]
    for group, settings in groups.items():
        options: list[Any] = [
            (s.field, Annotated[tuple[str, ...], _help(s)], UNSET) for s in settings
        ]
        part = dataclasses.make_dataclass(f"{group.title()}Options", options, frozen=True)
        parts.append((group, OmitArgPrefixes[part], part()))
    made = dataclasses.make_dataclass("Train", parts, frozen=True)
    made.__doc__ = __doc__
    return made


def _help(setting: Setting) -> Any:
    choices: Sequence[Any] = ()
    if typing.get_origin(setting.kind) is Literal:
        choices = typing.get_args(setting.kind)
    elif setting.kind is bool:
        choices = ("true", "false")
    default = setting.small
    if not default and setting.default is not dataclasses.MISSING:
        default = [setting.default]
    return arg(
        name=setting.option[2:],
        help=setting.help or setting.path[-1].replace("_", " "),
        help_behavior_hint=f"({' '.join(map(_shown, default)) or 'required'})",
        metavar="|".join(map(str, choices)) or "VALUE",
    )


def _find(name: str, kind: type, what: str) -> type:
    """Find a type by its name in study files, or by its name in words such as single-location."""
    known = known_types(kind)
    same = [cls for full, cls in known.items() if name in (full, _words(cls), cls.__name__)]
    if not same:
        names = [full if ":" in full else _words(cls) for full, cls in known.items()]
        raise unknown(what, name, names)
    return same[-1]


def _words(cls: type) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()


def _shown(value: Any) -> str:
    """Return a value as on the command line."""
    if isinstance(value, str):
        return value
    return json.dumps(to_jsonable(value), separators=(",", ":"))


def _settings(
    path: tuple[str, ...],
    cls: type,
    small: Mapping[str, Mapping[str, Sequence[Any]]],
    part: Any = None,
) -> Iterator[Setting]:
    """Yield the fields of a type, and of the parts that it holds.

    **Arguments:**

    - `small`: defaults for two cores, by type.
    - `part`: an object whose fields are the defaults; None for those of `cls`.
    """
    hints = typing.get_type_hints(cls)
    helps = argument_helps(cls)
    within = {} if part is None else canonical(part)
    values = small.get(cls.__name__, {})
    for field in fields(cls):
        default = getattr(part, field.name) if part is not None else field.default
        if field.name in NO_OPTIONS.get(cls.__name__, ()):
            continue
        if isinstance(default, Pytree) and not field.metadata.get("per_run"):
            yield from _settings((*path, field.name), type(default), {}, default)
            continue
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        kind = hints[field.name]
        words = helps.get(field.name, "")
        yield Setting((*path, field.name), kind, default, values.get(field.name, ()), words, within)


def _optimizer_settings(name: str) -> Iterator[Setting]:
    """Yield the arguments of the function that makes the optimizer."""
    factory = find_function(name, "--optimizer") if ":" in name else Optimizer(name).factory
    for option, parameter in inspect.signature(factory).parameters.items():
        if option != "learning_rate" and parameter.kind is not parameter.VAR_KEYWORD:
            required = parameter.default is parameter.empty
            default = dataclasses.MISSING if required else parameter.default
            yield Setting(("optimizer", option), type(parameter.default), default)


def argument_helps(cls: type) -> dict[str, str]:
    """Read the help of each argument from the docstrings of a class and its bases."""
    helps: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for entry in re.split(r"^- ", inspect.cleandoc(base.__doc__ or ""), flags=re.MULTILINE)[1:]:
            names, _, words = entry.partition(": ")
            words = " ".join(words.partition("\n\n")[0].split())
            words = re.sub(r"\[?`([^`]*)`\]?(\[\])?", r"\1", words)
            helps |= dict.fromkeys(re.findall(r"`(\w+)`", names), words)
    return helps
