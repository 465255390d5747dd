"""The study: many runs that answer one question, as a Python object and as a TOML file."""

import contextlib
import dataclasses
import functools
import itertools
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..core.errors import InputError, check_table, unknown
from ..core.files import atomic_write
from ..core.identity import canonical
from ..core.json import as_cell, to_jsonable
from ..core.pytree import as_tuple, check_fields, option
from ..core.terminal import counted, say
from ..measure import Term
from ..models import Model, default_model
from ..store.folder import RESERVED, WHOLE, Plan, StudyFolder
from ..store.store import Store
from ..tasks import Task
from ..training import (
    Config,
    Optimizer,
    Progress,
    Result,
    Run,
    as_start,
)
from ._live import Forecaster, Watcher, live_progress
from ._runs import Runs
from ._script import check_option, check_shell, check_value
from ._writers import RunLog
from .axes import Choice, axis_value, choices, field_paths, resolve_axis, with_axes
from .description import (
    AXES,
    PARTS,
    TRAINING,
    build_base,
    check_keys,
    check_values,
    construct,
    describe_config,
    load_plugins,
)
from .executor import Executor, check_platform, run_plan
from .plan import find_inputs, open_plan, save_inputs
from .results import changed_sources, read_result
from .toml import read_toml, toml_text

MOST_RUNS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Slurm:
    """The resources of each task of a Slurm array.

    **Arguments:**

    - `partition`, `account`: empty for the default of the cluster.
    - `minutes`, `gpus`, `cpus`, `memory_gb`: of a task.
    - `tasks`: the most tasks of the array; each trains unit after unit until none is left.
    - `setup`: shell lines to run first, such as `module load cuda`.
    - `extra`: other options of sbatch that ask for resources, by name, e.g. `{qos = "low"}`.

    Texts may only have characters that mean nothing to a shell, except in `setup`.

    ```python
    >>> em.Slurm(partition="gpu", minutes=60).cpus
    4

    ```
    """

    partition: str = ""
    minutes: int = option(240, low=1)
    gpus: int = option(1, low=0)
    cpus: int = option(4, low=1)
    memory_gb: float = option(16.0, low=0.001)
    tasks: int = option(32, low=1)
    account: str = ""
    setup: Sequence[str] = ()
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        _check_texts("slurm.setup", self.setup)
        check_value("slurm.partition", self.partition)
        check_value("slurm.account", self.account)
        for line in self.setup:
            check_shell("slurm.setup", line)
        for name, value in self.extra.items():
            check_option("slurm.extra", name, value)


@dataclasses.dataclass(frozen=True)
class Fit:
    """The law to fit to the finished runs of a study; see [`emergo.measure.fit_law`][].

    **Arguments:**

    - `x`: terms of columns, with one exponent each.
    - `y`: the column to explain, "plateau" or "steps".
    - `fix`: known exponents of columns.

    ```python
    >>> em.Fit(x=["dim", "length/burst"]).y
    'plateau'

    ```
    """

    x: Sequence[str]
    y: Literal["plateau", "steps"] = "plateau"
    fix: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        _check_texts("[law] x", self.x)
        for value in self.fix.values():
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError(
                    f"[law] fix must give finite exponents such as {{length = 1}}, got {value!r}"
                )
        if not self.x:
            raise InputError('[law] x needs at least one term, e.g. x = ["dim", "length/burst"]')


class _Callback(Watcher):
    """A watcher that passes progress to a function of the user."""

    def __init__(self, progress: Callable[[Progress], None], forecaster: Forecaster | None) -> None:
        super().__init__(forecaster)
        self.progress = progress

    def training(self, now: Progress) -> None:
        self.progress(now)


@dataclasses.dataclass(init=False, repr=False, eq=False)
class Study:
    """Many runs that answer one question.

    **Arguments:**

    - `task`, `model`, `optimizer`: the parts of every run.
    - `grid`: axes by the name of a field (`dim`, `learning_rate`, `layers`, ..., or `model.width`
      if several parts have it); all combinations are trained. An axis may also replace a whole
      part: `task`, `model`, `optimizer`, `interventions`, `stop` or `start`. Its values are parts
      by label, `{"model": {"wide": em.Transformer(...), "mine": Mine()}}`; tables show the label.
    - `zip`: axes whose values go together, the first with the first; combined with the grid as one
      more axis.
    - `seeds`: how many seeds, or a list of them.
    - `tune`: one more axis, of which each cell keeps the value with the shortest mean plateau
      (zucchet2025, D.3).
    - `law`: the law to fit; with `tune`, to the runs of the kept value.
    - `keep`: whether to keep parameters: True for steps 0, 25, 50, 100, 200, ..., or a list of
      steps.
    - `name`: of the study.
    - `retries`: how many times a failed run is tried again.
    - `unit`: the most runs that a process takes at once.
    - `slurm`: the resources on a Slurm cluster.
    - `plugins`: files or modules that define user types, for other processes.
    - `training`: the other fields of [`emergo.training.Config`][]: `batch`, `precision`, `steps`,
      `threshold`, `overtrain`, `n_test`, `n_train`, `interventions`, `probes`, `stop`, and
      `start`: a trained model, runs (each run starts from the one with its seed) or a file.

    ```python
    >>> task = em.SingleLocation(length=32, dim=8)
    >>> model = em.Transformer(layers=1, heads=1, width=64)
    >>> adam = em.Optimizer("adam", learning_rate=5e-4)
    >>> study = em.Study(task, model, adam, grid={"dim": [4, 8, 16]}, seeds=3, steps=5000)
    >>> len(study.runs)
    9
    >>> study.replace(task__repeat=em.Switch(0.4, 0.0, at=2000)).base.task.repeat
    Switch(before=0.4, after=0.0, at=2000)

    ```
    """

    base: Config
    grid: Mapping[str, tuple[Any, ...]]
    zip: Mapping[str, tuple[Any, ...]]
    tune: Mapping[str, tuple[Any, ...]]
    seeds: Sequence[int]
    law: Fit | None
    keep: bool | Sequence[int]
    name: str
    retries: int = option(low=0)
    unit: int = option(low=1)
    slurm: Slurm
    plugins: Sequence[str]

    def __init__(
        self,
        task: Task,
        model: Model | None = None,
        optimizer: Optimizer | None = None,
        *,
        grid: Mapping[str, Sequence[Any] | Mapping[str, Any]] | None = None,
        zip: Mapping[str, Sequence[Any]] | None = None,
        seeds: int | Sequence[int] = 3,
        tune: Mapping[str, Sequence[Any]] | None = None,
        law: Fit | None = None,
        keep: bool | Sequence[int] = False,
        name: str = "study",
        retries: int = 1,
        unit: int = 64,
        slurm: Slurm | None = None,
        plugins: Sequence[str] = (),
        **training: Any,
    ) -> None:
        check_keys("Study", training, [*_OWN, *TRAINING])
        if training.get("start") is not None:
            training["start"] = as_start(training["start"])
        self.base = Config(task, model or default_model(), optimizer or Optimizer(), **training)
        self.name = name
        self.retries = retries
        self.unit = unit
        self.law = law
        self.slurm = slurm or Slurm()
        self.plugins = _resolved(plugins, Path())
        self.keep = keep
        self.seeds = _seeds(seeds)
        self.grid = self._axes_of("grid", grid)
        self.zip = self._axes_of("zip", zip)
        self.tune = self._axes_of("tune", tune)
        check_fields(self)
        if not self.name.strip():
            raise InputError(f"name must be a text, got {name!r}")
        steps = () if isinstance(self.keep, bool) else self.keep
        if not all(type(step) is int and step >= 0 for step in steps):
            raise InputError(f"keep must be true, false or a list of steps, got {keep!r}")
        self._check()

    def _axes_of(self, table: str, axes: Any) -> dict[str, tuple[Any, ...]]:
        where = f"[{table}]"
        axes = axes or {}
        check_table(where, axes)
        plain = {}
        for name, values in axes.items():
            if resolve_axis(self.base, name, where) in WHOLE:
                plain[name] = choices(name, values, f"{where} {name}")
                continue
            if name in RESERVED:
                raise InputError(
                    f"{where} {name}: every table has a column of that name; write the path, "
                    f"e.g. task.{name}"
                )
            values = values.tolist() if isinstance(values, np.ndarray) else values
            check_values(f"{where} {name}", values)
            plain[name] = as_tuple(tuple(values))
        return plain

    def _check(self) -> None:
        paths = [self._paths[name] for name in self.axes]
        for name in self.axes:
            if paths.count(self._paths[name]) > 1:
                raise InputError(
                    f"axis {name} is given twice; keep it in one of [grid], [zip] and [tune]"
                )
        if len({len(values) for values in self.zip.values()}) > 1:
            sizes = ", ".join(f"{name} has {len(values)}" for name, values in self.zip.items())
            raise InputError(f"the axes of [zip] go together and need as many values each; {sizes}")
        if len(self.tune) > 1 or any(len(values) < 2 for values in self.tune.values()):
            raise InputError(
                "[tune] takes one axis with two values or more, e.g. learning_rate = [1e-4, 3e-4]"
            )
        if self.count > MOST_RUNS:
            raise InputError(f"this study has {self.count:,} runs; at most {MOST_RUNS:,} are taken")
        unending = all(config.threshold is None for config in self.configs)
        if unending and (self.law is not None or self.tune):
            raise InputError("[law] and [tune] are about plateaus; give a threshold that ends them")
        if self.law is not None:
            self._check_law(self.law)

    def _check_law(self, law: Fit) -> None:
        values = {**self.grid, **self.zip, **self.tune}
        names = {axis: axis.rpartition(".")[2] for axis in self.axes}
        moving = {name for axis, name in names.items() if len(set(values[axis])) > 1}
        if {"repeat", "dim"} & moving:
            moving.add("repeat_factor")
        known = [*field_paths(self.base), *names.values(), "repeat_factor"]
        for text in law.x:
            columns = [name for name, _ in Term.parse(text).powers]
            for column in columns:
                if column.rpartition(".")[2] not in (*known, *RESERVED):
                    raise unknown("column in [law] x", column, known)
            if not moving.intersection(columns):
                raise InputError(
                    f"[law] '{text}' is the same in all runs of this study; vary it in [grid], "
                    f"or leave it out"
                )

    @classmethod
    def of(cls, config: Config, **own: Any) -> "Study":
        """Return a study of runs with this config.

        **Arguments:**

        - `own`: the arguments of a study that a config does not have, such as `grid` and `seeds`.
        """
        training = {name: getattr(config, name) for name in TRAINING}
        return cls(config.task, config.model, config.optimizer, **own, **training)

    @property
    def axes(self) -> list[str]:
        """The names of what is varied: grid, zip, tune, in the order given."""
        return [*self.grid, *self.zip, *self.tune]

    @property
    def count(self) -> int:
        """The number of runs."""
        rows = len(next(iter(self.zip.values()), [None]))
        sizes = map(len, (*self.grid.values(), *self.tune.values()))
        return rows * len(self.seeds) * math.prod(sizes)

    def _cells(self) -> Iterator[dict[str, Any]]:
        """Yield the values of the axes of every cell."""
        rows = list(zip(*self.zip.values(), strict=True)) or [()]
        grid = itertools.product(*self.grid.values())
        for values in itertools.product(grid, rows, itertools.product(*self.tune.values())):
            yield dict(zip(self.axes, itertools.chain(*values), strict=True))

    @functools.cached_property
    def _paths(self) -> dict[str, str]:
        return {name: resolve_axis(self.base, name) for name in self.axes}

    @functools.cached_property
    def configs(self) -> list[Config]:
        """The config of each cell. Raises an `InputError` that names an impossible cell."""
        configs = []
        for values in self._cells():
            by_path = {self._paths[name]: value for name, value in values.items()}
            try:
                configs.append(with_axes(self.base, by_path))
            except InputError as error:
                cell = ", ".join(f"{name} = {value!r}" for name, value in values.items())
                raise InputError(f"the cell {cell}: {error}" if values else str(error)) from None
        return configs

    @functools.cached_property
    def _labels(self) -> dict[Config, dict[str, str]]:
        """The labels of the whole parts of each config, by axis."""
        return {
            config: {name: v.label for name, v in values.items() if isinstance(v, Choice)}
            for config, values in zip(self.configs, self._cells(), strict=True)
        }

    @functools.cached_property
    def runs(self) -> list[Run]:
        """All runs, the hardest first. The order does not depend on the order of the axes."""
        runs = [Run(config, seed) for config in self.configs for seed in self.seeds]
        if len({run.identity for run in runs}) < len(runs):
            raise InputError(
                "two cells of this study are the same run; give each value of an axis once"
            )
        order = {config: (*_easiness(config), Run(config, 0).identity) for config in self.configs}
        return sorted(runs, key=lambda run: (*order[run.config], run.seed))

    def values_of(self, run: Run) -> list[Any]:
        """Return the values of the axes of a run; schedules and tuples as text, parts as labels."""
        labels = self._labels.get(run.config, {})
        return [
            labels[name] if name in labels else as_cell(axis_value(run.config, self._paths[name]))
            for name in self.axes
        ]

    def run(
        self,
        folder: Path | str | None = None,
        *,
        on_end: Callable[[Result], None] = lambda result: None,
        progress: Callable[[Progress], None] | None = None,
        forecaster: Forecaster | None = None,
        seconds: float | None = None,
        log: str | None = None,
        **options: Any,
    ) -> Runs:
        """Train the runs that are missing, and return all finished runs.

        **Arguments:**

        - `folder`: the folder of the runs. Finished ones are read; missing ones are trained,
          alongside any other process that works on the folder. An interrupt loses no finished run.
          None: nothing is stored.
        - `on_end`: called with each result of this call.
        - `progress`: called after every chunk; by default a live table on standard error.
        - `forecaster`: forecasts runs in training, such as `emergo.forecasting.RunForecasts()`.
        - `seconds`: how long to train; the rest is left for the next call.
        - `log`: write the curves for `"tensorboard"` or `"wandb"` (Weights & Biases, offline unless
          `WANDB_MODE` is set) into a subfolder of this name, during training, and those of runs
          that were finished before.
        - `options`: fields of [`emergo.study.Executor`][], such as `n_parallel`.
        """
        if folder is None:
            if log is not None:
                raise InputError(f"log={log!r} needs a folder to write to, as the first argument")
            options |= {"on_end": on_end, "progress": progress, "forecaster": forecaster}
            with tempfile.TemporaryDirectory() as place:
                runs = self.run(place, seconds=seconds, **options)
            return self._collect(runs.results)
        find_inputs(Path(folder))
        known = [field.name for field in dataclasses.fields(Executor)]
        for name in options:
            if name not in known:
                raise unknown("keyword of Study.run", name, ["seconds", "progress", *known])
        check_platform(self.runs)
        if seconds is not None and not seconds >= 0:
            raise InputError(f"seconds must be 0 or more, got {seconds}")
        options["deadline"] = None if seconds is None else time.monotonic() + seconds
        display = live_progress(forecaster=forecaster)
        if progress is not None:
            display = contextlib.nullcontext(_Callback(progress, forecaster))
        with display as watch:
            options.setdefault("say", say)
            place = StudyFolder(folder)
            run_log = None if log is None else RunLog(log, place, self.name)
            plan, _ = self.open(place, options["say"])
            options |= {"watch": watch, "on_end": on_end, "log": run_log}
            run_plan(place, [plan.key], self.runs, **options)
            if run_log is not None:
                run_log.export(self.runs)
        return self.read(folder)

    def open(
        self, folder: StudyFolder, say: Callable[[str], None] = lambda line: None
    ) -> tuple[Plan, int]:
        """Write the plan of the study into a folder, or let the plan of the study there grow.

        **Arguments:**

        - `say`: called with a line about finished runs that lack something this study asks for.
          They are set aside and will be trained again.

        **Returns:** the plan, and how many of its runs are new to the folder.
        """
        return open_plan(folder, self.runs, self.axes, self.data(), self.unit, self.values_of, say)

    def read(self, folder: Path | str, curves: bool = True) -> Runs:
        """Return the finished runs of the study in a folder; with `curves=False` without curves.

        Unreadable runs are left out with a warning. Another warning appears if the code of
        a user's class or function has changed since runs were trained.
        """
        if not Path(folder).is_dir():
            raise InputError(
                f"{folder}: no such folder; `run` makes it, and trains what is not there"
            )
        store = Store(StudyFolder(folder).runs)
        results = []
        for run in self.runs:
            if store.has_entry(run.identity):
                try:
                    results.append(read_result(store, run, curves))
                except InputError as error:
                    warnings.warn(f"{error}; run the study to train it again", stacklevel=2)
        if changed := changed_sources(results):
            warnings.warn(f"{folder}: {changed}", stacklevel=2)
        if unverified := sum("unverified" in result.provenance for result in results):
            warnings.warn(
                f"{folder}: {counted(unverified, 'run')} without checksums: unverified",
                stacklevel=2,
            )
        return self._collect(results, store)

    def _collect(self, results: Sequence[Result], store: Store | None = None) -> Runs:
        tune = next(iter(self.tune), None)
        return Runs(results, self.axes, self.values_of, store, tune, self.name)

    def replace(self, **changes: Any) -> "Study":
        """Return a copy with other values.

        **Arguments:**

        - `changes`: arguments of the study, fields of training (`steps=100`), or fields of a part
          (`task__repeat=0.4`).
        """
        own = {name: getattr(self, name) for name in _OWN}
        own |= {name: changes.pop(name) for name in _OWN if name in changes}
        by_path = {name.replace("__", "."): value for name, value in changes.items()}
        return Study.of(with_axes(self.base, by_path), **own)

    def grown(
        self, axes: Mapping[str, Sequence[Any]], seeds: int | Sequence[int] | None = None
    ) -> "Study":
        """Return the study with more values of its axes and more seeds.

        **Arguments:**

        - `axes`: the values to add to each axis.
        - `seeds`: how many seeds there should be, or a list of seeds to add.
        """
        tables = {table: dict(getattr(self, table)) for table in AXES}
        for name, values in axes.items():
            table = next((table for table in tables if name in tables[table]), None)
            if table is None:
                raise unknown("axis of this study", name, self.axes)
            old = tables[table][name]
            if isinstance(old[0], Choice):
                values = choices(name, values, f"the axis {name}")
            new = [value for value in values if table == "zip" or value not in old]
            tables[table][name] = (*old, *new)
        added = () if seeds is None else _seeds(seeds)
        return self.replace(**tables, seeds=tuple(dict.fromkeys((*self.seeds, *added))))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Study":
        """Build a study from plain data: the content of a study file."""
        base, axes = build_base(data, _OWN)
        own = {name: data[name] for name in _OWN if name in data and name not in AXES}
        for name, kind in (("law", Fit), ("slurm", Slurm)):
            if name in own:
                own[name] = construct(kind, own[name], f"[{name}]")
        return cls.of(base, **axes, **own)

    @classmethod
    def read_file(cls, path: Path | str) -> "Study":
        """Read a study from a TOML file.

        Imports the plugins that the file names; their paths are relative to the file.
        """
        path = Path(path)
        try:
            data = {"name": path.stem, **read_toml(path)}
            data["plugins"] = _resolved(data.get("plugins", ()), path.parent)
            load_plugins(data["plugins"])
            find_inputs(path.parent)
            _resolve_start(data, path.parent)
            return cls.from_data(data)
        except InputError as error:
            message = str(error) if str(error).startswith(str(path)) else f"{path}: {error}"
            raise InputError(message) from None

    def data(self) -> dict[str, Any]:
        """Return the study as plain data: the content of a study file."""
        described = describe_config(self.base)
        if self.base.threshold is None:
            described["threshold"] = "none"  # TOML cannot write null
        data: dict[str, Any] = {name: getattr(self, name) for name in _OWN if name not in AXES}
        data |= {name: described[name] for name in PARTS}
        data |= {"train": {name: described[name] for name in TRAINING if name in described}}
        data |= {name: _axes_data(getattr(self, name)) for name in AXES}
        data |= {"seeds": list(self.seeds), "slurm": dataclasses.asdict(self.slurm)}
        if self.law is None:
            del data["law"]
        else:
            data["law"] = dataclasses.asdict(self.law)
        return to_jsonable(data)

    def write_file(self, path: Path | str) -> None:
        """Write the study to a TOML file.

        Parameters that runs start from are written to a folder `starts` next to the file, and
        corpora to a folder `corpora`.
        """
        save_inputs(Path(path).parent, self.configs)
        atomic_write(Path(path), toml_text(self.data()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Study) and self.data() == other.data()

    def __hash__(self) -> int:
        return hash(self.base)

    def __repr__(self) -> str:
        from ._estimate import describe_study

        return describe_study(self)


# The arguments of a study that a config does not have.
_OWN = [field.name for field in dataclasses.fields(Study) if field.name != "base"]


def _easiness(config: Config) -> tuple[float, ...]:
    """Return a sort key that is smaller for a config with a longer plateau, as far as its task can
    tell; of equal ones, smaller for a smaller learning rate."""
    rate = config.optimizer.learning_rate
    hardness = [-size for size in config.task.hardness()]
    return (*hardness, rate if isinstance(rate, int | float) else 0.0)


def _axes_data(axes: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return axes as plain data: lists of values, and tables of parts by label."""
    data: dict[str, Any] = {}
    for name, values in axes.items():
        if isinstance(values[0], Choice):
            parts = {choice.label: canonical(choice.part) for choice in values}
            data[name] = {label: "none" if p is None else p for label, p in parts.items()}
        else:
            data[name] = canonical(values)
    return data


def _resolve_start(data: Mapping[str, Any], folder: Path) -> None:
    """Make the file that `[train] start` names relative to the study file."""
    train = data.get("train")
    start = train.get("start") if isinstance(train, Mapping) else None
    if isinstance(start, str) and start != "none":
        data["train"]["start"] = str(folder / start)
    elif isinstance(start, Mapping) and isinstance(start.get("file"), str):
        data["train"]["start"] = {**start, "file": str(folder / start["file"])}


def _check_texts(name: str, values: Any) -> None:
    if not isinstance(values, tuple) or not all(isinstance(text, str) for text in values):
        raise InputError(f"{name} must be a list of texts, got {values!r}")


def _resolved(plugins: Any, folder: Path) -> tuple[str, ...]:
    """Return plugins with absolute paths of files."""
    names = as_tuple(plugins)
    _check_texts("plugins", names)
    return tuple(str((folder / p).resolve()) if p.endswith(".py") else p for p in names)


def _seeds(given: Any) -> Sequence[int]:
    seeds: Any = given.tolist() if isinstance(given, np.ndarray | np.generic) else given
    if type(seeds) is int and seeds > 0:
        return range(seeds)
    every = list(seeds) if isinstance(seeds, Sequence) else []
    if not every or not all(type(seed) is int and 0 <= seed < 2**32 for seed in every):
        raise InputError(
            f"seeds must be a number of seeds, or a list of whole numbers from 0 to 2^32 - 1, "
            f"got {seeds!r}"
        )
    if len(set(every)) < len(every):
        raise InputError("seeds has a seed twice")
    return tuple(every)
