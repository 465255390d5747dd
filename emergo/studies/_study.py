"""A study: a task, a model, an optimizer, what is varied and how often; the same as a Python object and as a TOML file."""

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

from .._errors import InputError, check_table, unknown
from .._files import atomic_write
from .._identity import canonical
from .._pytree import check_fields, option
from .._terminal import say
from ..engine import Config, Optimizer, OutOfTime, Progress, Result, Run, train
from ..measure import Term
from ..models import Model, Transformer
from ..tasks import Task
from ._axes import axis_value, field_paths, plain, resolve_axis, with_axes
from ._description import AXES, PARTS, TRAINING, build_base, check_keys, check_values, construct, load_plugins, wrong_key
from ._executor import Executor, check_platform
from ._folder import RESERVED, Plan, StudyFolder
from ._live import Watcher, live_progress
from ._outcomes import read_outcomes
from ._plan import open_plan
from ._runs import Runs
from ._store import Store
from ._toml import read_toml, toml_text

MOST_RUNS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Slurm:
    """What a task of a Slurm array asks for.

    ```python
    >>> em.Slurm(partition="gpu", minutes=60).cpus
    4

    ```
    """

    partition: str = ""  # the cluster's own
    minutes: int = option(240, low=1)
    gpus: int = option(1, low=0)
    cpus: int = option(4, low=1)
    memory_gb: float = option(16.0, low=0.001)
    tasks: int = option(32, low=1)  # the most tasks of the array; each trains unit after unit until none is left
    account: str = ""
    setup: Sequence[str] = ()  # shell lines to run first, such as `module load cuda`
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Other options of sbatch by name, e.g. {qos = "low"}."""

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "setup", _texts("slurm.setup", self.setup))
        if not isinstance(self.extra, Mapping):
            raise InputError(f"slurm.extra must be a table of options of sbatch, got {self.extra!r}")


@dataclasses.dataclass(frozen=True)
class Fit:
    """The law to fit to the finished runs of a study: of `y` ("plateau" or "steps"), with one exponent for each term of `x`,
    as in [`emergo.measure.fit_law`][], and known exponents for the columns in `fix`.

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
        if isinstance(self.fix, Mapping):
            object.__setattr__(self, "fix", {name: _plain(value) for name, value in self.fix.items()})
        fix = self.fix.values() if isinstance(self.fix, Mapping) else [math.nan]
        if not all(type(value) in (int, float) and math.isfinite(value) for value in fix):
            raise InputError(f"[law] fix must give finite exponents, e.g. fix = {{length = 1}}, got {self.fix!r}")
        if not self.x:
            raise InputError('[law] x needs at least one term, e.g. x = ["dim", "length/burst"]')


class Study:
    """Many runs and one question.

    **Arguments:**

    - `task`, `model`, `optimizer`: what every run is made of, but for what is varied.
    - `grid`: axes by the name of a field (`dim`, `learning_rate`, `layers`, ..., or `model.width` where several parts have it);
      every combination is trained.
    - `zip`: axes whose values go together, the first with the first; combined with the grid as one more axis.
    - `seeds`: how many, or which.
    - `tune`: one more axis, of which each cell keeps the value with the shortest mean plateau (zucchet2025, D.3).
    - `law`: the law to fit; with `tune`, to the runs of the kept value.
    - `keep`: whether to keep parameters: True for steps 0, 25, 50, 100, 200, ..., or the steps to keep.
    - `name`, `retries` (how often a run that failed is tried again), `unit` (at most how many runs a process takes at a time),
      `slurm`, `plugins` (files or modules that define the types used here, for other processes).
    - all else is as in [`emergo.engine.Config`][]: `batch`, `precision`, `steps`, `threshold`, `overtrain`, `n_test`,
      `n_train`, `interventions`, `probes`.

    ```python
    >>> study = em.Study(em.SingleLocation(length=32, dim=8), em.Transformer(layers=1, heads=1, width=64),
    ...                  em.Optimizer("adam", learning_rate=5e-4), grid={"dim": [4, 8, 16]}, seeds=3, steps=5000)
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
        self.base = Config(task, model or Transformer(), optimizer or Optimizer(), **training)
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"name must be a text, got {name!r}")
        self.name, self.retries, self.unit = name, _whole("retries", retries, 0), _whole("unit", unit, 1)
        for key, value, kind in (("law", law, Fit), ("slurm", slurm, Slurm)):
            if not isinstance(value, kind | None):
                raise InputError(f"{key} must be an em.{kind.__name__}(…), got {value!r}")
        self.law, self.slurm = law, slurm or Slurm()
        self.plugins = _resolved(plugins, Path())
        steps = () if isinstance(keep, bool) else _items("keep must be true, false or a list of steps", keep)
        self.keep = keep if isinstance(keep, bool) else tuple(_whole("keep", step, 0) for step in steps)
        self.seeds = _seeds(seeds)
        self.grid, self.zip, self.tune = (self._axes_of(*table) for table in (("grid", grid), ("zip", zip), ("tune", tune)))
        self._check()

    def _axes_of(self, table: str, axes: Any) -> dict[str, tuple[Any, ...]]:
        where = f"[{table}]"
        check_table(where, axes or {})
        axes = {name: _plain(values) for name, values in (axes or {}).items()}
        for name, values in axes.items():
            resolve_axis(self.base, name, where)
            if name in RESERVED:
                raise InputError(f"{where} {name}: every table has a column of that name; write the path, e.g. task.{name}")
            check_values(f"{where} {name}", values)
            if len(_distinct(values)) < len(values) and table != "zip":
                raise InputError(f"{where} {name} has a value twice")
        return {name: tuple(values) for name, values in axes.items()}

    def _check(self) -> None:
        paths = [self._paths[name] for name in self.axes]
        for name in self.axes:
            if paths.count(self._paths[name]) > 1:
                raise InputError(f"axis {name} is given twice; keep it in one of [grid], [zip] and [tune]")
        if len({len(values) for values in self.zip.values()}) > 1:
            sizes = ", ".join(f"{name} has {len(values)}" for name, values in self.zip.items())
            raise InputError(f"the axes of [zip] go together and need as many values each; {sizes}")
        if len(self.tune) > 1 or any(len(values) < 2 for values in self.tune.values()):
            raise InputError("[tune] takes one axis with two values or more, e.g. learning_rate = [1e-4, 3e-4]")
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
        moving = {name.rpartition(".")[2] for name in self.axes if len(_distinct(values[name])) > 1}
        moving |= {"repeat_factor"} if {"repeat", "dim"} & moving else set()
        known = [*field_paths(self.base), *(name.rpartition(".")[2] for name in self.axes), "repeat_factor"]
        for text in law.x:
            names = [name for name, _ in Term.parse(text).powers]
            for name in names:
                if name.rpartition(".")[2] not in (*known, *RESERVED):
                    raise unknown("column in [law] x", name, known)
            if not any(name in moving for name in names):
                raise InputError(f"[law] '{text}' is the same in all runs of this study; vary it in [grid], or leave it out")

    @classmethod
    def of(cls, config: Config, **own: Any) -> "Study":
        """A study whose runs are like a config; `own` are the arguments that a config does not have: `grid`, `seeds`, ..."""
        training = {name: getattr(config, name) for name in TRAINING}
        return cls(config.task, config.model, config.optimizer, **own, **training)

    @property
    def axes(self) -> list[str]:
        """What is varied, in the order given: grid, zip, tune."""
        return [*self.grid, *self.zip, *self.tune]

    @property
    def count(self) -> int:
        rows = len(next(iter(self.zip.values()), [None]))
        return rows * len(self.seeds) * math.prod(map(len, (*self.grid.values(), *self.tune.values())))

    def _cells(self) -> Iterator[dict[str, Any]]:
        """The values of the axes in every cell."""
        rows = [dict(zip(self.zip, row, strict=True)) for row in zip(*self.zip.values(), strict=True)] or [{}]
        grid, tune = ([[{k: v} for v in values] for k, values in axes.items()] for axes in (self.grid, self.tune))
        for parts in itertools.product(*grid, rows, *tune):
            yield {name: value for part in parts for name, value in part.items()}

    @functools.cached_property
    def _paths(self) -> dict[str, str]:
        return {name: resolve_axis(self.base, name) for name in self.axes}

    @functools.cached_property
    def configs(self) -> list[Config]:
        """One per cell; a cell that cannot be is named."""
        configs = []
        for values in self._cells():
            try:
                configs.append(with_axes(self.base, {self._paths[name]: value for name, value in values.items()}))
            except InputError as error:
                cell = ", ".join(f"{name} = {value!r}" for name, value in values.items())
                raise InputError(f"the cell {cell}: {error}" if values else str(error)) from None
        return configs

    @functools.cached_property
    def runs(self) -> list[Run]:
        """All runs, the hardest first; the order does not depend on how the axes are written."""
        runs = [Run(config, seed) for config in self.configs for seed in self.seeds]
        if len({run.identity for run in runs}) < len(runs):
            raise InputError("two cells of this study are the same run; give each value of an axis once")
        order = {config: (*_easiness(config), Run(config, 0).identity) for config in self.configs}
        return sorted(runs, key=lambda run: (*order[run.config], run.seed))

    def values_of(self, run: Run) -> list[Any]:
        """The values of the axes that a run has; schedules and tuples as text."""
        return [plain(axis_value(run.config, self._paths[name])) for name in self.axes]

    # Running it.

    def run(
        self,
        folder: Path | str | None = None,
        *,
        on_end: Callable[[Result], None] = lambda result: None,
        progress: Callable[[Progress], None] | None = None,
        seconds: float | None = None,
        **options: Any,
    ) -> Runs:
        """Trains what is missing and returns all runs that are finished.

        **Arguments:**

        - `folder`: where runs are kept: what is there is read, what is not is trained, beside any other process that does. An
          interrupt loses nothing that is finished. None: nothing is kept.
        - `progress`: called after every chunk; by default a live table on standard error.
        - `seconds`: how long to train for; the rest is left for the next call.
        - `options`: those of [`emergo.studies.Executor`][], such as `n_parallel`.
        """
        check_platform(self.runs, options.get("devices"))
        if seconds is not None and not seconds >= 0:
            raise InputError(f"seconds must be 0 or more, got {seconds}")
        options["deadline"] = None if seconds is None else time.monotonic() + seconds
        with live_progress() if progress is None else contextlib.nullcontext(Watcher()) as watch:

            def ended(result: Result) -> None:
                watch.ended(result)
                on_end(result)

            options |= {"on_end": ended, "progress": progress or watch.training}
            if folder is None:
                watch.begin(self.runs)
                return self._train(**options)
            options.setdefault("say", say)
            plan, _ = self.open(StudyFolder(folder), options["say"])
            watch.begin(self.runs, lambda: read_outcomes(StudyFolder(folder).runs).rows)
            known = {run.identity: run for run in self.runs}
            Executor(StudyFolder(folder), [plan.key], known, **options).run()
        return self.read(folder)

    def _train(self, on_end: Callable[[Result], None], **options: Any) -> Runs:
        """Without a folder."""
        results: dict[str, Result] = {}

        def ended(result: Result) -> None:
            results[result.run.identity] = result
            on_end(result)

        with contextlib.suppress(OutOfTime):
            train(self.runs, on_end=ended, **options)
        return self._collect([results[run.identity] for run in self.runs if run.identity in results])

    def open(self, folder: StudyFolder, say: Callable[[str], None] = lambda line: None) -> tuple[Plan, int]:
        """Puts the study into a folder, or lets the one that is there grow to it; returns its plan, and how many runs are new.
        `say` gets a line on finished runs that lack what this study asks for: they are set aside, to be trained again."""
        return open_plan(folder, self.runs, self.axes, self.data(), self.unit, self.values_of, say)

    def read(self, folder: Path | str, curves: bool = True) -> Runs:
        """The runs of the study that are finished in a folder. One that cannot be read is named in a warning and left out."""
        if not Path(folder).is_dir():
            raise InputError(f"{folder}: no such folder; `run` makes it, and trains what is not there")
        store, results = Store(StudyFolder(folder).runs), []
        for run in self.runs:
            try:
                results += [store.read(run, curves)] if store.holds(run) else []
            except InputError as error:
                warnings.warn(f"{error}; run the study to train it again", stacklevel=2)
        return self._collect(results, store)

    def _collect(self, results: Sequence[Result], store: Store | None = None) -> Runs:
        return Runs(results, self.axes, self.values_of, store, next(iter(self.tune), None))

    # The same with changes, as plain data and as a file.

    def replace(self, **changes: Any) -> "Study":
        """A copy with other values: of its own arguments, of training (`steps=100`), or of a part (`task__repeat=0.4`)."""
        own = {name: changes.pop(name) for name in list(changes) if name in _OWN}
        base = with_axes(self.base, {name.replace("__", "."): value for name, value in changes.items()})
        return Study.of(base, **{name: getattr(self, name) for name in _OWN} | own)

    def grown(self, axes: Mapping[str, Sequence[Any]], seeds: int | Sequence[int] | None = None) -> "Study":
        """The study with more values of its axes and more seeds."""
        tables = {table: {k: list(v) for k, v in getattr(self, table).items()} for table in AXES}
        for name, values in axes.items():
            table = next((t for t in tables if name in tables[t]), None)
            if table is None:
                raise wrong_key("this study", name, self.axes or ["no axis"])
            tables[table][name] += [value for value in values if table == "zip" or value not in tables[table][name]]
        every = tuple(dict.fromkeys((*self.seeds, *(() if seeds is None else _seeds(seeds)))))
        return self.replace(**tables, seeds=every)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Study":
        """A study from plain data: the content of a TOML file."""
        base, axes = build_base(data, _OWN)
        own = {name: data[name] for name in ("seeds", "name", "retries", "unit", "plugins", "keep") if name in data}
        own |= {name: construct(kind, data[name], f"[{name}]") for name, kind in _TABLES.items() if name in data}
        return cls.of(base, **axes, **own)

    @classmethod
    def read_file(cls, path: Path | str) -> "Study":
        """A study from a TOML file. Imports the plugins that it names, files relative to it."""
        path = Path(path)
        try:
            data = {"name": path.stem, **read_toml(path)}
            data["plugins"] = _resolved(data.get("plugins", ()), path.parent)
            load_plugins(data["plugins"])
            return cls.from_data(data)
        except InputError as error:
            raise InputError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None

    def data(self) -> dict[str, Any]:
        described = self.base.describe() | {"threshold": "none" if self.base.threshold is None else self.base.threshold}
        described |= {"probes": canonical(self.base.probes)} if self.base.probes else {}
        train = {name: described[name] for name in TRAINING if name in described}
        data: dict[str, Any] = {"name": self.name, "seeds": list(self.seeds), "retries": self.retries, "unit": self.unit}
        data |= {} if self.keep is False else {"keep": self.keep if self.keep is True else list(self.keep)}
        data |= {"plugins": list(self.plugins)} if self.plugins else {}
        data |= {part: described[part] for part in PARTS} | {"train": train}
        data |= {t: {k: [canonical(v) for v in values] for k, values in getattr(self, t).items()} for t in AXES}
        data |= {} if self.law is None else {"law": dataclasses.asdict(self.law) | {"x": list(self.law.x)}}
        return data | {"slurm": dataclasses.asdict(self.slurm) | {"setup": list(self.slurm.setup)}}

    def write_file(self, path: Path | str) -> None:
        atomic_write(Path(path), toml_text(self.data()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Study) and self.data() == other.data()

    def __hash__(self) -> int:
        return hash(tuple(run.identity for run in self.runs))

    def __repr__(self) -> str:
        from ._estimate import describe_study

        return describe_study(self)


_OWN = ("grid", "zip", "seeds", "tune", "law", "keep", "name", "retries", "unit", "slurm", "plugins")
_TABLES = {"law": Fit, "slurm": Slurm}


def _easiness(config: Config) -> tuple[float, ...]:
    """Smaller for a config whose plateau is longer, as far as its task can tell, then for a smaller learning rate."""
    rate = config.optimizer.learning_rate
    return (*(-size for size in config.task.hardness()), rate if isinstance(rate, int | float) else 0.0)


def _distinct(values: Sequence[Any]) -> set[str]:
    return {str(canonical(value)) for value in values}


def _items(words: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InputError(f"{words}, got {values!r}")
    return tuple(values)


def _texts(name: str, values: Any) -> tuple[str, ...]:
    if not all(isinstance(value, str) for value in _items(f"{name} must be a list of texts", values)):
        raise InputError(f"{name} must be a list of texts, got {values!r}")
    return tuple(values)


def _resolved(plugins: Any, folder: Path) -> tuple[str, ...]:
    """Plugins, with the paths of files in full."""
    return tuple(str((folder / p).resolve()) if p.endswith(".py") else p for p in _texts("plugins", plugins))


def _plain(value: Any) -> Any:
    """Arrays and numbers of NumPy as lists and numbers of Python."""
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
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
