"""A study: a task, a model, an optimizer, what is varied and how often; the same as a Python object and as a TOML file."""

import contextlib
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._errors import InputError, check_table
from .._files import atomic_write
from .._identity import canonical
from .._pytree import check_fields, option
from .._terminal import say
from ..engine import Config, Optimizer, OutOfTime, Progress, Result, Run, train
from ..measure import Term
from ..models import Model, Transformer
from ..tasks import Task
from ._axes import axis_value, check_values, resolve_axis, with_axes
from ._description import TRAINING, build_config, build_value, find_type, load_plugins, wrong_key
from ._executor import Executor, check_platform
from ._folder import Plan, StudyFolder
from ._live import live_progress
from ._plan import open_plan
from ._runs import Runs
from ._store import Store
from ._toml import read_toml, toml_text

MOST_RUNS = 1_000_000
_AXES = ("grid", "zip", "tune")


@dataclasses.dataclass(frozen=True)
class Slurm:
    """What a task of a Slurm array asks for.

    ```python
    >>> em.Slurm(partition="gpu", minutes=60).cpus
    4

    ```
    """

    partition: str = ""
    """By default the cluster's own."""
    minutes: int = option(240, low=1)
    gpus: int = option(1, low=0)
    cpus: int = option(4, low=1)
    memory_gb: float = option(16.0, low=0.001)
    tasks: int = option(32, low=1)
    """The most tasks of the array; each trains unit after unit until none is left."""
    account: str = ""
    setup: tuple[str, ...] = ()
    """Shell lines to run first, such as `module load cuda`."""
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Other options of sbatch by name, e.g. {qos = "low"}."""

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "setup", _texts("slurm.setup", self.setup))
        if not isinstance(self.extra, Mapping):
            raise InputError(f"slurm.extra must be a table of options of sbatch, got {self.extra!r}")


@dataclasses.dataclass(frozen=True)
class Fit:
    """The law to fit to the finished runs of a study.

    **Arguments:**

    - `x`: terms, one exponent each, as in [`emergo.measure.fit_law`][].
    - `y`: what the law explains: `"plateau"` or `"steps"`.
    - `fix`: columns with a known exponent.

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
        numbers = isinstance(self.fix, Mapping) and all(type(v) in (int, float) and math.isfinite(v) for v in self.fix.values())
        if not numbers:
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
        for key in training:
            if key not in TRAINING:
                raise wrong_key("Study", key, [*_OWN, *TRAINING])
        self.base = Config(task, model or Transformer(), optimizer or Optimizer(), **training)
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"name must be a text, got {name!r}")
        for key, value, low in (("retries", retries, 0), ("unit", unit, 1)):
            _whole(key, value, low)
        self.name, self.retries, self.unit = name, retries, unit
        self.law, self.slurm = law, slurm or Slurm()
        self.plugins = tuple(str(Path(p).resolve()) if p.endswith(".py") else p for p in _texts("plugins", plugins))
        self.keep = keep if isinstance(keep, bool) else _steps(keep)
        self.seeds = _seeds(seeds)
        self.grid, self.zip, self.tune = ({}, {}, {})
        for table, axes in (("grid", grid), ("zip", zip), ("tune", tune)):
            setattr(self, table, self._axes_of(table, axes or {}))
        self._check()

    def _axes_of(self, table: str, axes: Any) -> dict[str, tuple[Any, ...]]:
        check_table(f"[{table}]", axes)
        checked = {}
        for name, values in axes.items():
            resolve_axis(self.base, name, f"[{table}]")
            checked[name] = check_values(f"[{table}]", name, values)
            if table != "zip" and len({str(canonical(value)) for value in values}) < len(values):
                raise InputError(f"[{table}] {name} has a value twice")
        return checked

    def _check(self) -> None:
        paths = [resolve_axis(self.base, name) for name in self.axes]
        for name, path in zip(self.axes, paths, strict=True):
            if paths.count(path) > 1:
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
        """How many runs there are."""
        cells = len(next(iter(self.zip.values()))) if self.zip else 1
        for values in (*self.grid.values(), *self.tune.values()):
            cells *= len(values)
        return cells * len(self.seeds)

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
        configs = self.configs
        runs = [Run(config, seed) for config in configs for seed in self.seeds]
        unique = {run.identity: run for run in runs}
        if len(unique) < len(runs):
            raise InputError("two cells of this study are the same run; give each value of an axis once")
        order = {config: (*(-size for size in hardness(config)), Run(config, 0).identity) for config in configs}
        return sorted(unique.values(), key=lambda run: (*order[run.config], run.seed))

    def values_of(self, run: Run) -> list[Any]:
        """The values of the axes that a run has; schedules and tuples as text."""
        values = [axis_value(run.config, self._paths[name]) for name in self.axes]
        return [v if isinstance(v, bool | int | float | str) or v is None else repr(v) for v in values]

    def _check_law(self, law: Fit) -> None:
        if law.y not in ("plateau", "steps"):
            raise InputError(f"[law] y must be plateau or steps, got {law.y!r}")
        moving = {name.rpartition(".")[2] for name in self.axes if self._varies(name)}
        moving |= {"repeat_factor"} if {"repeat", "dim"} & moving else set()
        for text in law.x:
            names = [name for name, _ in Term.parse(text).powers]
            if not any(name in moving for name in names):
                raise InputError(f"[law] '{text}' is the same in all runs of this study; vary it in [grid], or leave it out")

    def _varies(self, name: str) -> bool:
        return len({str(canonical(value)) for value in {**self.grid, **self.zip, **self.tune}[name]}) > 1

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
        deadline = None if seconds is None else time.monotonic() + seconds
        if folder is None:
            return self._train(on_end, progress, deadline, options)
        place = StudyFolder(folder)
        options.setdefault("say", say)
        plan, _ = self.open(place, options["say"])
        known = {run.identity: run for run in self.runs}
        with _shown(progress) as show:
            Executor(place, [plan.key], known, on_end=on_end, progress=show, deadline=deadline, **options).run()
        return self.read(folder)

    def _train(
        self, on_end: Callable[[Result], None], progress: Any, deadline: float | None, options: Mapping[str, Any]
    ) -> Runs:
        """Without a folder."""
        results: dict[str, Result] = {}

        def ended(result: Result) -> None:
            results[result.run.identity] = result
            on_end(result)

        with _shown(progress) as show, contextlib.suppress(OutOfTime):
            train(self.runs, on_end=ended, progress=show, deadline=deadline, **options)
        return self._collect([results[run.identity] for run in self.runs if run.identity in results], None)

    def open(self, folder: StudyFolder, say: Callable[[str], None] = lambda line: None) -> tuple[Plan, int]:
        """Puts the study into a folder, or lets the one that is there grow to it; returns its plan, and how many runs are new.

        Finished runs that lack what this study asks for are set aside, to be trained again; `say` gets a line on them.
        """
        return open_plan(folder, self.runs, self.axes, self.data(), self.unit, self.values_of, say)

    def read(self, folder: Path | str, curves: bool = True) -> Runs:
        """The runs of the study that are finished in a folder."""
        store = Store(StudyFolder(folder).runs)
        return self._collect([store.read(run, curves) for run in self.runs if run in store], store)

    def _collect(self, results: Sequence[Result], store: Store | None) -> Runs:
        return Runs(results, self.axes, self.values_of, store, next(iter(self.tune), None))

    # The same with changes, as plain data and as a file.

    def replace(self, **changes: Any) -> "Study":
        """A copy with other values: of its own arguments, of training (`steps=100`), or of a part (`task__repeat=0.4`)."""
        own = {name: changes.pop(name) for name in list(changes) if name in _OWN}
        base = with_axes(self.base, {name.replace("__", "."): value for name, value in changes.items()})
        return Study.of(base, **{name: getattr(self, name) for name in _OWN} | own)

    def grown(self, axes: Mapping[str, Sequence[Any]], seeds: int | Sequence[int] | None = None) -> "Study":
        """The study with more values of its axes and more seeds."""
        tables = {table: {k: list(v) for k, v in getattr(self, table).items()} for table in _AXES}
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
        known = ["task", "model", "optimizer", "train", *_OWN]
        for name in data:
            if name not in known and name != "since":
                raise wrong_key("the study", name, known)
        tables = {name: data.get(name, {}) for name in ("task", "model", "optimizer", "train", "slurm", *_AXES)}
        for name, table in tables.items():
            check_table(f"[{name}]", table)
        axes = {t: {k: _built(v, f"[{t}] {k}") for k, v in _paths(tables[t]).items()} for t in _AXES}
        first = {name: values[0] for t in _AXES for name, values in axes[t].items() if isinstance(values, tuple) and values}
        base = build_config(_with_first(tables, first), tables["train"])
        own = {name: data[name] for name in ("seeds", "name", "retries", "unit", "plugins", "keep") if name in data}
        if "law" in data:
            own["law"] = _from_table(Fit, data["law"], "[law]")
        own["slurm"] = _from_table(Slurm, tables["slurm"], "[slurm]")
        return cls.of(base, **axes, **own)

    @classmethod
    def read_file(cls, path: Path | str) -> "Study":
        """A study from a TOML file. Imports the plugins that it names, files relative to it."""
        path = Path(path)
        try:
            data = {"name": path.stem, **read_toml(path)}
            plugins = _texts("plugins", data.get("plugins", ()))
            data["plugins"] = [str((path.parent / p).resolve()) if p.endswith(".py") else p for p in plugins]
            load_plugins(data["plugins"])
            return cls.from_data(data)
        except InputError as error:
            raise InputError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None

    def data(self) -> dict[str, Any]:
        """The study as plain data."""
        described = self.base.describe()
        threshold = "none" if self.base.threshold is None else self.base.threshold
        train = {name: described[name] for name in TRAINING if name in described} | {"threshold": threshold}
        train |= {"probes": canonical(self.base.probes)} if self.base.probes else {}
        data: dict[str, Any] = {"name": self.name, "seeds": list(self.seeds), "retries": self.retries, "unit": self.unit}
        data |= {} if self.keep is False else {"keep": self.keep if self.keep is True else list(self.keep)}
        data |= {"plugins": list(self.plugins)} if self.plugins else {}
        data |= {part: described[part] for part in ("task", "model", "optimizer")} | {"train": train}
        data |= {t: {k: [canonical(v) for v in values] for k, values in getattr(self, t).items()} for t in _AXES}
        if self.law is not None:
            data["law"] = {"x": list(self.law.x), "y": self.law.y, "fix": dict(self.law.fix)}
        return data | {"slurm": dataclasses.asdict(self.slurm) | {"setup": list(self.slurm.setup)}}

    def write_file(self, path: Path | str) -> None:
        """Writes the study as a TOML file."""
        atomic_write(Path(path), toml_text(self.data()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Study) and self.data() == other.data()

    def __hash__(self) -> int:
        return hash(tuple(run.identity for run in self.runs))

    def __repr__(self) -> str:
        """What it is, and what to expect of running it here."""
        from ._estimate import describe_study

        return describe_study(self)


_OWN = ("grid", "zip", "seeds", "tune", "law", "keep", "name", "retries", "unit", "slurm", "plugins")


def _with_first(tables: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of parts, with the first value of an axis where a part needs a field that only an axis gives."""
    parts = {name: dict(tables[name]) for name in ("task", "model", "optimizer")}
    for part, kind, usual in (("task", Task, "SingleLocation"), ("model", Model, "Transformer")):
        table = parts[part]
        for field in dataclasses.fields(find_type(table.get("type", usual), kind, f"[{part}]")):
            for name in (field.name, f"{part}.{field.name}"):
                if field.default is dataclasses.MISSING and name in first:
                    table.setdefault(field.name, first[name])
    return parts


def _paths(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A table of axes by their paths: in TOML, `model.width = [8, 16]` is a table within a table."""
    paths: dict[str, Any] = {}
    for name, value in table.items():
        paths |= _paths(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return paths


def _built(values: Any, where: str) -> Any:
    """Values of an axis, with tables as the schedules, parts or functions that they describe."""
    return build_value(values, where) if isinstance(values, list) else values


def hardness(config: Config) -> tuple[float, ...]:
    """Larger for a config whose plateau is longer, as far as theory tells: by inputs, by length over `burst`, by `repeat` where
    the task has these, and by the learning rate."""
    spec = config.task.spec
    burst, repeat, rate = (
        value if isinstance(value, int | float) else usual
        for value, usual in (
            (getattr(config.task, "burst", 1), 1),
            (getattr(config.task, "repeat", 0), 0),
            (config.optimizer.learning_rate, 0),
        )
    )
    return (spec.inputs, spec.length / burst, -repeat, -rate)


def _shown(progress: Callable[[Progress], None] | None) -> contextlib.AbstractContextManager[Callable[[Progress], None]]:
    """A context that yields where progress goes; by default the live table."""
    return live_progress() if progress is None else contextlib.nullcontext(progress)


def _seeds(seeds: Any) -> tuple[int, ...]:
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        _whole("seeds", seeds, 1)
        if seeds > MOST_RUNS:
            raise InputError(f"seeds must be at most {MOST_RUNS:,}, got {seeds:,}")
        return tuple(range(seeds))
    if isinstance(seeds, str | bool | float) or not isinstance(seeds, Sequence) or not seeds:
        raise InputError(f"seeds must be a number of seeds or a list of them, got {seeds!r}")
    for seed in seeds:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
            raise InputError(f"a seed must be a whole number from 0 to 2^32 - 1, got {seed!r}")
    if len(set(seeds)) < len(seeds):
        raise InputError("seeds has a seed twice")
    return tuple(seeds)


def _from_table(kind: Any, given: Any, where: str) -> Any:
    check_table(where, given)
    known = [field.name for field in dataclasses.fields(kind)]
    for name in given:
        if name not in known:
            raise wrong_key(where, name, known)
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING and field.name not in given:
            raise InputError(f"{where} needs {field.name}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def _steps(keep: Any) -> tuple[int, ...]:
    if isinstance(keep, str) or not isinstance(keep, Sequence):
        raise InputError(f"keep must be true, false or a list of steps, got {keep!r}")
    return tuple(_whole("keep", step, 0) for step in keep)


def _texts(name: str, values: Any) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(v, str) for v in values):
        raise InputError(f"{name} must be a list of texts, got {values!r}")
    return tuple(values)


def _whole(name: str, value: Any, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise InputError(f"{name} must be a whole number of at least {low}, got {value!r}")
    return value
