"""A study: a base config, what is varied, how often, and the law to fit; the same as a Python object and as a TOML file."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._errors import InputError, check_numbers
from .._files import write_whole
from ..engine import Config, Run
from ..measure import Term
from ..tasks import MarkovChain
from ._fields import AXES, PLACES, config_data, config_from, file_paths, place_of, varied, wrong_axis, wrong_key
from ._grid import hardness
from ._toml import read_toml, toml_text

MOST_RUNS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Slurm:
    """What a task of a Slurm array asks for."""

    partition: str = ""
    """By default the cluster's own."""
    minutes: int = 240
    gpus: int = 1
    cpus: int = 4
    memory_gb: float = 16.0
    tasks: int = 32
    """The most tasks of the array; each trains unit after unit until none is left."""
    account: str = ""
    setup: Sequence[str] = ()
    """Shell lines to run first, such as `module load cuda`."""
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Other options of sbatch by name, e.g. {qos = "low"}."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "setup", _texts("slurm.setup", self.setup))
        for name in ("partition", "account"):
            if not isinstance(getattr(self, name), str):
                raise InputError(f"slurm.{name} must be a text, got {getattr(self, name)!r}")
        if not isinstance(self.extra, Mapping):
            raise InputError(f"slurm.extra must be a table of options of sbatch, got {self.extra!r}")
        for name, least in (("minutes", 1), ("gpus", 0), ("cpus", 1), ("tasks", 1)):
            _whole(f"slurm.{name}", getattr(self, name), least)
        check_numbers(self)
        if not self.memory_gb > 0:
            raise InputError(f"slurm.memory_gb must be positive, got {self.memory_gb!r}")


@dataclasses.dataclass(frozen=True)
class Fit:
    """The law to fit to the finished runs, as `emergo fit` would."""

    x: Sequence[str]
    y: str = "plateau"
    fix: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", _texts("[law] x", self.x))
        if not isinstance(self.fix, Mapping) or not all(type(v) in (int, float) for v in self.fix.values()):
            raise InputError(f"[law] fix must give exponents, e.g. fix = {{length = 1}}, got {self.fix!r}")
        if not self.x:
            raise InputError('[law] x needs at least one term, e.g. x = ["dim", "length/burst"]')


@dataclasses.dataclass(frozen=True)
class Study:
    """Many runs and one question.

    **Arguments:**

    - `base`: one run but for its seed; with the stop rule (`steps`, `threshold`, `beyond`), which a file has in `[stop]`.
    - `grid`: axes by the name of a field of the config (`dim`, `length`, `learning_rate`, `layers`, ...); every combination.
    - `zip`: axes whose values go together, the first with the first; combined with the grid as one more axis.
    - `seeds`: how many, or which.
    - `tune`: one more axis, of which each cell keeps the value with the shortest mean plateau (zucchet2025, D.3).
    - `law`: fitted by `show`; with `tune`, to the runs of the kept value.
    - `retries`: how often a run that failed is tried again.
    - `unit`: at most how many runs of one shape a process takes at a time.
    """

    base: Config
    grid: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    zip: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    seeds: int | Sequence[int] = 3
    tune: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    law: Fit | None = None
    name: str = "study"
    retries: int = 1
    unit: int = 64
    slurm: Slurm = dataclasses.field(default_factory=Slurm)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise InputError(f"name must be a text, got {self.name!r}")
        _whole("retries", self.retries, 0)
        _whole("unit", self.unit, 1)
        object.__setattr__(self, "seeds", _seeds(self.seeds))
        for table in ("grid", "zip", "tune"):
            object.__setattr__(self, table, _axes(table, getattr(self, table)))
        names = [*self.grid, *self.zip, *self.tune]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"axis {name} is given twice; keep it in one of [grid], [zip] and [tune]")
        if len({len(values) for values in self.zip.values()}) > 1:
            sizes = ", ".join(f"{name} has {len(values)}" for name, values in self.zip.items())
            raise InputError(f"the axes of [zip] go together and need as many values each; {sizes}")
        if len(self.tune) > 1 or any(len(values) < 2 for values in self.tune.values()):
            raise InputError("[tune] takes one axis with two values or more, e.g. learning_rate = [1e-4, 3e-4]")
        if self.count > MOST_RUNS:
            raise InputError(f"this study has {self.count:,} runs; at most {MOST_RUNS:,} are taken")
        # The base is the first cell, so that two ways to write a study are equal.
        object.__setattr__(self, "base", self._configs[0])
        if (self.law is not None or self.tune) and not any(map(_has_threshold, self._configs)):
            raise InputError(
                "[law] and [tune] are about plateaus; give a threshold that ends them, e.g. [stop] threshold = 0.1"
            )
        if self.law is not None:
            self._check_law(self.law)

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
        return cells * len(_seeds(self.seeds))

    def _cells(self) -> Iterator[dict[str, Any]]:
        """The values of the axes in every cell."""
        rows = [dict(zip(self.zip, row, strict=True)) for row in zip(*self.zip.values(), strict=True)] or [{}]
        grid, tune = ([[{k: v} for v in values] for k, values in axes.items()] for axes in (self.grid, self.tune))
        for parts in itertools.product(*grid, rows, *tune):
            yield {name: value for part in parts for name, value in part.items()}

    @functools.cached_property
    def _configs(self) -> list[Config]:
        """Of every cell; a cell that cannot be is named."""
        made = []
        for values in self._cells():
            try:
                made.append(varied(self.base, values))
            except InputError as error:
                cell = ", ".join(f"{name} = {value!r}" for name, value in values.items())
                raise InputError(f"the cell {cell}: {error}" if values else str(error)) from None
        return made

    @functools.cached_property
    def runs(self) -> list[Run]:
        """All runs, the hardest first; the order does not depend on how the axes are written."""
        configs = self._configs
        made = [Run(config, seed) for config in configs for seed in _seeds(self.seeds)]
        unique = {run.identity: run for run in made}
        if len(unique) < len(made):
            raise InputError("two cells of this study are the same run; give each value of an axis once")
        firsts = {config: Run(config, 0).identity for config in configs}
        return sorted(unique.values(), key=lambda r: (*(-x for x in hardness(r.config)), firsts[r.config], r.seed))

    def values_of(self, run: Run) -> list[Any]:
        """The values of the axes that a run has."""
        return [getattr(place_of(run.config, PLACES[name]), name) for name in self.axes]

    def _check_law(self, law: Fit) -> None:
        known = [*PLACES, "repeat_factor"]
        if law.y not in ("plateau", "steps"):
            raise InputError(f"[law] y must be plateau or steps, got {law.y!r}")
        for text in law.x:
            names = [name for name, _ in Term.parse(text).powers]
            for name in names:
                if name not in known:
                    raise wrong_key("[law] x", name, known)
            moving = {*self.axes} | ({"repeat_factor"} if {"repeat", "dim"} & {*self.axes} else set())
            if not any(name in moving and self._varies(name) for name in names):
                raise InputError(f"[law] '{text}' is the same in all runs of this study; vary it in [grid], or leave it out")

    def _varies(self, name: str) -> bool:
        every = {**self.grid, **self.zip, **self.tune}
        names = ("repeat", "dim") if name == "repeat_factor" else (name,)
        return any(len(set(every.get(n, ()))) > 1 for n in names)

    # The same as plain data and as a file.

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Study":
        """A study from plain data: the content of a TOML file."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in data:
            if name not in (*known, "stop"):
                raise wrong_key("", name, [*known, "stop"], file_paths())
        tables = {name: data.get(name, {}) for name in ("base", "stop", "grid", "zip", "tune", "slurm")}
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise InputError(f"[{name}] must be a table, got {table!r}")
        first = {}
        for name in ("grid", "zip", "tune"):
            first |= {axis: values[0] for axis, values in _axes(name, tables[name]).items()}
        made = {name: data[name] for name in ("seeds", "name", "retries", "unit") if name in data}
        if "law" in data:
            made["law"] = _table(Fit, data["law"], "law")
        made["slurm"] = _table(Slurm, tables["slurm"], "slurm")
        try:
            base = config_from(tables["base"], tables["stop"], first)
        except InputError as error:
            raise InputError(_in_its_table(str(error), tables)) from None
        return cls(base, tables["grid"], tables["zip"], tune=tables["tune"], **made)

    @classmethod
    def read(cls, path: Path | str) -> "Study":
        """A study from a TOML file."""
        path = Path(path)
        try:
            data = read_toml(path)
            return cls.of({"name": path.stem, **data})
        except InputError as error:
            said = str(error)
            raise InputError(said if said.startswith(str(path)) else f"{path}: {said}") from None

    def data(self) -> dict[str, Any]:
        """The study as plain data, every field of it."""
        base, stop = config_data(self.base)
        made: dict[str, Any] = {
            "name": self.name,
            "seeds": list(_seeds(self.seeds)),
            "retries": self.retries,
            "unit": self.unit,
        }
        made |= {"base": base, "stop": stop}
        made |= {table: {k: list(v) for k, v in getattr(self, table).items()} for table in ("grid", "zip", "tune")}
        if self.law is not None:
            made["law"] = {"x": list(self.law.x), "y": self.law.y, "fix": dict(self.law.fix)}
        made["slurm"] = dataclasses.asdict(self.slurm) | {"setup": list(self.slurm.setup)}
        return made

    def write(self, path: Path | str) -> None:
        """Writes the study as a TOML file."""
        write_whole(Path(path), toml_text(self.data()))

    def grown(self, axes: Mapping[str, Sequence[Any]], seeds: int | Sequence[int] | None = None) -> "Study":
        """The study with more values of its axes and more seeds."""
        made = {table: {k: list(v) for k, v in getattr(self, table).items()} for table in ("grid", "zip", "tune")}
        for name, values in axes.items():
            table = next((t for t in made if name in made[t]), None)
            if table is None:
                raise wrong_axis("this study", name, self.axes or ["none"])
            fresh = [value for value in values if table == "zip" or value not in made[table][name]]
            made[table][name] += fresh
        every = list(dict.fromkeys((*_seeds(self.seeds), *(_seeds(seeds) if seeds is not None else ()))))
        return dataclasses.replace(self, **made, seeds=every)


def _in_its_table(said: str, tables: Mapping[str, Mapping[str, Any]]) -> str:
    """A message on a field of the config, with the table that the value was given in: an axis, or `[stop]`."""
    found = re.match(r"\[base[.\w]*\] (?=(unknown )?(\w+))", said)
    if found is None:
        return said
    table = next((table for table in ("grid", "zip", "tune", "stop") if found[2] in tables[table]), None)
    return said if table is None else f"[{table}] {said[found.end() :]}"


def _has_threshold(config: Config) -> bool:
    """Whether a run can end its plateau: the KL of a chain is never 0."""
    return config.threshold > 0 or not isinstance(config.task, MarkovChain)


def _seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        _whole("seeds", seeds, 1)
        return tuple(range(seeds))
    if isinstance(seeds, str | bool | float) or not isinstance(seeds, Sequence) or not seeds:
        raise InputError(f"seeds must be a number of seeds or a list of them, got {seeds!r}")
    for seed in seeds:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
            raise InputError(f"a seed must be a whole number from 0 to 2^32 - 1, got {seed!r}")
    if len(set(seeds)) < len(seeds):
        raise InputError("seeds has a seed twice")
    return tuple(seeds)


def _axes(table: str, axes: Any) -> dict[str, tuple[Any, ...]]:
    if not isinstance(axes, Mapping):
        raise InputError(f"[{table}] must be a table of axes, got {axes!r}")
    made = {}
    for name, values in axes.items():
        if name not in AXES:
            raise wrong_axis(f"[{table}]", name, AXES)
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise InputError(f"[{table}] {name} must be a list of values, got {values!r}; for one value write it in [base]")
        if not values:
            raise InputError(f"[{table}] {name} needs at least one value")
        for value in values:
            if not isinstance(value, bool | int | float | str):
                raise InputError(f"[{table}] {name}: {value!r} is neither a number nor a text")
        if table != "zip" and len(set(values)) < len(values):
            raise InputError(f"[{table}] {name} has a value twice")
        made[name] = tuple(values)
    return made


def _table(kind: Any, given: Any, where: str) -> Any:
    if not isinstance(given, Mapping):
        raise InputError(f"[{where}] must be a table, got {given!r}")
    known = [field.name for field in dataclasses.fields(kind)]
    for name in given:
        if name not in known:
            raise wrong_key(f"[{where}]", name, known)
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING and field.name not in given:
            raise InputError(f"[{where}] needs {field.name}")
    return kind(**given)


def _texts(name: str, values: Any) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(v, str) for v in values):
        raise InputError(f"{name} must be a list of texts, got {values!r}")
    return tuple(values)


def _whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
