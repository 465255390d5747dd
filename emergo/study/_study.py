"""The study: many runs that answer one question, as a Python object and as a TOML file."""

import contextlib
import dataclasses
import functools
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import InputError, check_table, unknown
from ..core.files import atomic_write
from ..core.identity import canonical
from ..core.json import as_cell
from ..core.pytree import check_fields, option
from ..core.terminal import say
from ..measure import Term
from ..models import Model, default_model
from ..store.folder import RESERVED, Plan, StudyFolder
from ..store.store import Store
from ..tasks import Task
from ..training import Config, Optimizer, OutOfTime, Progress, Result, Run, train
from ._live import Callback, Forecaster, Watcher, live_progress
from ._runs import Runs
from .axes import axis_value, field_paths, resolve_axis, with_axes
from .description import (
    AXES,
    PARTS,
    TRAINING,
    build_base,
    check_keys,
    check_values,
    construct,
    load_plugins,
)
from .executor import check_platform, run_plan
from .plan import open_plan
from .results import read_result
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
    - `extra`: other options of sbatch by name, e.g. `{qos = "low"}`.

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
        object.__setattr__(self, "setup", _texts("slurm.setup", self.setup))
        if not isinstance(self.extra, Mapping):
            raise InputError(
                f"slurm.extra must be a table of options of sbatch, got {self.extra!r}"
            )


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
    y: str = "plateau"
    fix: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", _texts("[law] x", self.x))
        fix = self.fix
        if isinstance(fix, Mapping):
            fix = {name: _plain(value) for name, value in fix.items()}
            object.__setattr__(self, "fix", fix)
        exponents = fix.values() if isinstance(fix, Mapping) else [math.nan]
        if not all(type(value) in (int, float) and math.isfinite(value) for value in exponents):
            raise InputError(
                f"[law] fix must give finite exponents, e.g. fix = {{length = 1}}, got {fix!r}"
            )
        if not self.x:
            raise InputError('[law] x needs at least one term, e.g. x = ["dim", "length/burst"]')


class Study:
    """Many runs that answer one question.

    **Arguments:**

    - `task`, `model`, `optimizer`: the parts of every run.
    - `grid`: axes by the name of a field (`dim`, `learning_rate`, `layers`, ..., or `model.width`
      if several parts have it); all combinations are trained.
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
      `threshold`, `overtrain`, `n_test`, `n_train`, `interventions`, `probes`.

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

    def __init__(
        self,
        task: Task,
        model: Model | None = None,
        optimizer: Optimizer | None = None,
        *,
        grid: Mapping[str, Sequence[Any]] | None = None,
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
        self.base = Config(task, model or default_model(), optimizer or Optimizer(), **training)
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"name must be a text, got {name!r}")
        for key, value, kind in (("law", law, Fit), ("slurm", slurm, Slurm)):
            if not isinstance(value, kind | None):
                raise InputError(f"{key} must be an em.{kind.__name__}(…), got {value!r}")
        self.name = name
        self.retries = _whole("retries", retries, 0)
        self.unit = _whole("unit", unit, 1)
        self.law = law
        self.slurm = slurm or Slurm()
        self.plugins = _resolved(plugins, Path())
        self.keep = keep
        if not isinstance(keep, bool):
            steps = _items("keep must be true, false or a list of steps", keep)
            self.keep = tuple(_whole("keep", step, 0) for step in steps)
        self.seeds = _seeds(seeds)
        self.grid = self._axes_of("grid", grid)
        self.zip = self._axes_of("zip", zip)
        self.tune = self._axes_of("tune", tune)
        self._check()

    def _axes_of(self, table: str, axes: Any) -> dict[str, tuple[Any, ...]]:
        where = f"[{table}]"
        check_table(where, axes or {})
        axes = {name: _plain(values) for name, values in (axes or {}).items()}
        for name, values in axes.items():
            resolve_axis(self.base, name, where)
            if name in RESERVED:
                raise InputError(
                    f"{where} {name}: every table has a column of that name; write the path, "
                    f"e.g. task.{name}"
                )
            check_values(f"{where} {name}", values)
            if len(_distinct(values)) < len(values) and table != "zip":
                raise InputError(f"{where} {name} has a value twice")
        return {name: tuple(values) for name, values in axes.items()}

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
        if law.y not in ("plateau", "steps"):
            raise InputError(f"[law] y must be plateau or steps, got {law.y!r}")
        values = {**self.grid, **self.zip, **self.tune}
        names = {axis: axis.rpartition(".")[2] for axis in self.axes}
        moving = {name for axis, name in names.items() if len(_distinct(values[axis])) > 1}
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
        """Return the values of the axes of a run; schedules and tuples as text."""
        return [as_cell(axis_value(run.config, self._paths[name])) for name in self.axes]

    def run(
        self,
        folder: Path | str | None = None,
        *,
        on_end: Callable[[Result], None] = lambda result: None,
        progress: Callable[[Progress], None] | None = None,
        forecaster: Forecaster | None = None,
        seconds: float | None = None,
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
        - `options`: fields of [`emergo.study.Executor`][], such as `n_parallel`.
        """
        check_platform(self.runs)
        if seconds is not None and not seconds >= 0:
            raise InputError(f"seconds must be 0 or more, got {seconds}")
        options["deadline"] = None if seconds is None else time.monotonic() + seconds
        if progress is None:
            display = live_progress(forecaster=forecaster)
        else:
            display = contextlib.nullcontext(Callback(progress, forecaster))
        with display as watch:
            if folder is None:
                return self._train(watch, on_end, options)
            options.setdefault("say", say)
            place = StudyFolder(folder)
            plan, _ = self.open(place, options["say"])
            run_plan(place, [plan.key], self.runs, watch=watch, on_end=on_end, **options)
        return self.read(folder)

    def _train(
        self, watch: Watcher, on_end: Callable[[Result], None], options: Mapping[str, Any]
    ) -> Runs:
        """Train all runs without a folder."""
        results: dict[str, Result] = {}

        def ended(result: Result) -> None:
            results[result.run.identity] = result
            watch.ended(result)
            on_end(result)

        watch.begin(self.runs)
        with contextlib.suppress(OutOfTime):
            train(self.runs, on_end=ended, progress=watch.training, **options)
        return self._collect([results[r.identity] for r in self.runs if r.identity in results])

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

        Unreadable runs are left out with a warning.
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
        return self._collect(results, store)

    def _collect(self, results: Sequence[Result], store: Store | None = None) -> Runs:
        return Runs(results, self.axes, self.values_of, store, next(iter(self.tune), None))

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
            return cls.from_data(data)
        except InputError as error:
            message = str(error) if str(error).startswith(str(path)) else f"{path}: {error}"
            raise InputError(message) from None

    def data(self) -> dict[str, Any]:
        """Return the study as plain data: the content of a study file."""
        described = self.base.describe()
        if self.base.threshold is None:
            described["threshold"] = "none"  # TOML cannot write null
        if self.base.probes:
            described["probes"] = canonical(self.base.probes)
        data: dict[str, Any] = {
            "name": self.name,
            "seeds": list(self.seeds),
            "retries": self.retries,
            "unit": self.unit,
        }
        if self.keep is not False:
            data["keep"] = self.keep if self.keep is True else list(self.keep)
        if self.plugins:
            data["plugins"] = list(self.plugins)
        data |= {part: described[part] for part in PARTS}
        data["train"] = {name: described[name] for name in TRAINING if name in described}
        for table in AXES:
            axes = getattr(self, table)
            data[table] = {name: list(map(canonical, values)) for name, values in axes.items()}
        if self.law is not None:
            data["law"] = dataclasses.asdict(self.law) | {"x": list(self.law.x)}
        data["slurm"] = dataclasses.asdict(self.slurm) | {"setup": list(self.slurm.setup)}
        return data

    def write_file(self, path: Path | str) -> None:
        """Write the study to a TOML file."""
        atomic_write(Path(path), toml_text(self.data()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Study) and self.data() == other.data()

    def __hash__(self) -> int:
        return hash(tuple(run.identity for run in self.runs))

    def __repr__(self) -> str:
        from ._estimate import describe_study

        return describe_study(self)


# The arguments of a study that a config does not have.
_OWN = (*AXES, "seeds", "law", "keep", "name", "retries", "unit", "slurm", "plugins")


def _easiness(config: Config) -> tuple[float, ...]:
    """Return a sort key that is smaller for a config with a longer plateau, as far as its task can
    tell; of equal ones, smaller for a smaller learning rate."""
    rate = config.optimizer.learning_rate
    hardness = [-size for size in config.task.hardness()]
    return (*hardness, rate if isinstance(rate, int | float) else 0.0)


def _distinct(values: Sequence[Any]) -> set[str]:
    return {str(canonical(value)) for value in values}


def _items(words: str, values: Any) -> tuple[Any, ...]:
    """Return a list as a tuple; raise an `InputError` for anything else."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InputError(f"{words}, got {values!r}")
    return tuple(values)


def _texts(name: str, values: Any) -> tuple[str, ...]:
    words = f"{name} must be a list of texts"
    texts = _items(words, values)
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"{words}, got {values!r}")
    return texts


def _resolved(plugins: Any, folder: Path) -> tuple[str, ...]:
    """Return plugins with absolute paths of files."""
    names = _texts("plugins", plugins)
    return tuple(str((folder / p).resolve()) if p.endswith(".py") else p for p in names)


def _plain(value: Any) -> Any:
    """Convert arrays and numbers of NumPy to lists and numbers of Python."""
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _seeds(seeds: Any) -> tuple[int, ...]:
    seeds = _plain(seeds)
    if type(seeds) is int:
        if seeds > MOST_RUNS:
            raise InputError(f"seeds must be at most {MOST_RUNS:,}, got {seeds:,}")
        return tuple(range(_whole("seeds", seeds, 1)))
    every = _items("seeds must be a number of seeds or a list of them", seeds or None)
    for seed in every:
        if type(seed) is not int or not 0 <= seed < 2**32:
            raise InputError(f"a seed must be a whole number from 0 to 2^32 - 1, got {seed!r}")
    if len(set(every)) < len(every):
        raise InputError("seeds has a seed twice")
    return every


def _whole(name: str, value: Any, low: int) -> int:
    if type(value) is not int or value < low:
        raise InputError(f"{name} must be a whole number of at least {low}, got {value!r}")
    return value
