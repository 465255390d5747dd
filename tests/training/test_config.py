"""The identity of a run, and the checks of a config."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emergo.models as models
import emergo.tasks as tasks
from emergo.core.contract import Spec
from emergo.core.errors import InputError
from emergo.core.identity import canonical, type_name
from emergo.core.pytree import Pytree, Schedule, fields, per_run

from .own import BASE, CHAIN, Echo, clock, signs
from .untyped import (
    Clamp,
    Config,
    EarlyStopping,
    Freeze,
    Groups,
    MarkovChain,
    Optimizer,
    Ramp,
    Recall,
    Replace,
    Run,
    Scale,
    SingleLocation,
    Start,
    Switch,
    Task,
    Transformer,
    WarmupCosine,
    When,
)

TASK = SingleLocation(16, 4, 2, 0.0, "random", True)
SHORT = Config(TASK, precision="fp32")
SPELLED = Config(
    task=SingleLocation(
        length=16, dim=4, burst=2, repeat=0.0, position="random", indicator=True, special="basis"
    ),
    model=Transformer(
        layers=2,
        heads=4,
        width=256,
        mlp_factor=4,
        norm="none",
        mask="none",
        activation="relu",
        attention="softmax",
        initial="pytorch",
        positions="sinusoidal",
        skip=True,
        mlp=True,
        temperature="fixed",
    ),
    optimizer=Optimizer(name="adam", learning_rate=1e-4, b1=0.9, b2=0.999, eps=1e-8),
    batch=32,
    precision="fp32",
    steps=50_000,
    threshold=0.1,
    overtrain=0.0,
    n_test=128,
    n_train=None,
    interventions=(),
    probes=(),
)
OTHERS = {
    "task": {
        "length": 17,
        "dim": 5,
        "burst": 3,
        "repeat": 0.1,
        "position": "fixed",
        "indicator": False,
        "special": "draw",
    },
    "model": {
        "layers": 3,
        "heads": 2,
        "width": 128,
        "mlp_factor": 2,
        "norm": "pre",
        "mask": "causal",
        "activation": "gelu",
        "attention": "linear",
        "initial": "normal",
        "positions": "none",
        "skip": False,
        "mlp": False,
        "temperature": "learned",
        "window": 3,
        "top_k": 2,
        "norm_type": "rms",
        "tied": True,
        "dropout": 0.1,
    },
    "optimizer": {
        "name": "adamw",
        "learning_rate": 2e-4,
        "clip": 1.0,
        "options": {"b2": 0.99},
        "numbers": [("b2", Switch(0.9, 0.99, at=5))],
    },
    "": {
        "batch": 16,
        "precision": "bf16",
        "steps": 100,
        "threshold": 0.2,
        "overtrain": 1.0,
        "n_test": 64,
        "n_train": 32,
        "interventions": (Clamp(0),),
        "stop": EarlyStopping(),
        "start": Start("a digest"),
    },
}


def identity(config, seed=0):
    return Run(config, seed).identity


def changed(config, part, values):
    return config.replace(
        **{f"{part}__{name}" if part else name: value for name, value in values.items()}
    )


SCHEDULED = SHORT.replace(
    task__repeat=Switch(0.4, 0.0, at=2000),
    optimizer=Optimizer("lion", WarmupCosine(1e-3, warmup=100, end=5000)),
    interventions=(
        Freeze(0, first=100),
        Scale("layers.0.scores", factor=Ramp(0.0, 1.0, begin=0, end=9)),
    ),
)
PINNED = {
    "short": (SHORT, 7, "d03acebfb3d17050"),
    "recall": (Config(Recall(2, 6), precision="bf16"), 0, "1d01626c33ad0e00"),
    "chain": (CHAIN.replace(steps=50_000, n_test=128), 3, "1c59b4bff4e03eb4"),
    "scheduled": (SCHEDULED, 1, "cf37e64d2faa0ca9"),
    # Contains the name of this folder: tests.engine.own had the identity 95a641b4b4b7a2c3.
    "of the user": (
        BASE.replace(optimizer=Optimizer(signs, 0.1, decay=0.5)),
        0,
        "177027dd03f76f40",
    ),
}


@pytest.mark.parametrize("name", PINNED)
def test_a_pinned_identity(name):
    """Finished runs are found by their identity. If this fails, every store and record is lost."""
    config, seed, pinned = PINNED[name]
    assert identity(config, seed) == pinned


def test_defaults_may_be_left_out():
    assert identity(SHORT, 7) == identity(SPELLED, 7)


@pytest.mark.parametrize(
    ("part", "one", "two"),
    [
        ("task", {"repeat": -0.0}, {"repeat": 0.0}),
        ("task", {"repeat": 1}, {"repeat": np.float64(1.0)}),
        ("task", {"dim": np.int64(5)}, {"dim": 5}),
        ("optimizer", {"learning_rate": 1}, {"learning_rate": 1.0}),
        ("optimizer", {"clip": np.float32(2)}, {"clip": 2}),
        (
            "optimizer",
            {"options": {"eps": np.float64(0.5), "b2": 0}},
            {"options": [("b2", -0.0), ("eps", 0.5)]},
        ),
        ("", {"overtrain": 2, "threshold": 1}, {"overtrain": 2.0, "threshold": np.float64(1.0)}),
        (
            "",
            {"interventions": [Clamp(0)]},
            {"interventions": (Clamp("layers.0.pattern", until=2**31 - 1),)},
        ),
        ("task", {"repeat": Switch(1, 0, at=np.int32(9))}, {"repeat": Switch(1.0, -0.0, at=9)}),
        (
            "",
            {"task": MarkovChain(Groups([1, 2]))},
            {"task": MarkovChain(Groups((1, np.int64(2))))},
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_the_form_of_a_number_does_not_matter(part, one, two):
    first = changed(SHORT, part, one)
    second = changed(SHORT, part, two)
    assert identity(first) == identity(second)
    assert first == second
    assert identity(first) != identity(SHORT) or one == {"repeat": -0.0}


def test_every_field_counts():
    """Covers all fields of all parts, so a new field cannot be forgotten."""
    for part, values in OTHERS.items():
        kind = getattr(SHORT, part) if part else SHORT
        left_out = {*OTHERS, "probes"} if not part else set()  # probes only measure, see below
        assert {f.name for f in dataclasses.fields(kind)} - left_out == set(values)
    # Positions other than random need no mark, so that the indicator can be changed too.
    base = changed(SHORT, "task", {"position": "last"})
    configs = [
        changed(base, part, {name: value})
        for part, values in OTHERS.items()
        for name, value in values.items()
    ]
    configs += [
        base,
        base.replace(optimizer=Optimizer("sgd")),
        base.replace(optimizer=Optimizer("adam", 1e-4, eps=1e-3)),
    ]
    identities = {identity(config) for config in configs} | {identity(base, 1)}
    assert len(identities) == len(configs) + 1
    assert all(len(i) == 16 and int(i, 16) >= 0 for i in identities)


def test_schedules_differ_from_constants_and_from_each_other():
    half = Switch(0.5, 0.5, at=10)
    twin = Ramp(0.5, 0.5, begin=0, end=10)
    trigger = When("loss", below=0.5, before=0.5, after=0.5)
    other = When("loss", above=0.5, before=0.5, after=0.5)
    values = [0.5, half, Switch(0.5, 0.5, at=11), twin, trigger, other]
    assert len({identity(changed(SHORT, "task", {"repeat": value})) for value in values}) == len(
        values
    )


class Sized(Task):
    """A task that can be part of a config."""

    @property
    def spec(self):
        return Spec(4, 3, 3)


class Sibling(Sized):
    """The fields of `Echo` without its methods."""

    length: int
    dim: int
    gain: float = per_run(default=1.0)
    noise: float = per_run(default=0.0, low=0.0)


class Child(Echo):
    """A subclass that overrides one method."""

    def truth(self, key):
        return -super().truth(key)


class Renamed(Sized):
    length: int
    width: int
    gain: float = per_run(default=1.0)


class SingleLocationChild(SingleLocation):
    """A subclass of a task of the package."""


def test_classes_with_equal_fields_differ():
    given = [
        Echo(4, 3),
        Sibling(4, 3),
        Child(4, 3),
        Renamed(4, 3),
        SingleLocation(4, 3),
        SingleLocationChild(4, 3),
    ]
    assert len({identity(BASE.replace(task=task)) for task in given}) == len(given)


def redefined(name="Task1", **body):
    """Create a class with the name and module of its other versions, as if it was edited."""
    hints = {key: hint for key, (hint, _) in body.items()}
    values = {key: value for key, (_, value) in body.items() if value is not None}
    kind: Any = type(
        name,
        (Task,),
        {"__annotations__": hints, "__module__": __name__, "__qualname__": name, **values},
    )
    return kind


def test_edits_of_a_class():
    """A new field with its default keeps identities. Setting it, renaming a field or raising the
    version changes them."""
    before = canonical(redefined(length=(int, None), width=(int, 2))(4, 3))
    assert (
        canonical(redefined(length=(int, None), width=(int, 2), gain=(float, 1.0))(4, 3)) == before
    )
    assert (
        canonical(
            redefined(length=(int, None), width=(int, 2), gain=(float, per_run(default=1.0)))(4, 3)
        )
        == before
    )
    assert (
        canonical(redefined(length=(int, None), width=(int, 2), gain=(float, 1.0))(4, 3, 2.0))
        != before
    )
    assert canonical(redefined(length=(int, None), depth=(int, 2))(4, 3)) != before
    raised = redefined(length=(int, None), width=(int, 2))
    raised.version = 2
    assert canonical(raised(4, 3)) == before | {"version": 2}
    assert canonical(redefined(name="Task2", length=(int, None), width=(int, 2))(4, 3)) != before


def test_the_version_of_a_function_counts(monkeypatch):
    config = BASE.replace(optimizer=Optimizer(signs, 0.1))
    before = identity(config)
    monkeypatch.setattr(signs, "version", 2, raising=False)
    assert identity(config) != before


def measured(params, output, batch, truth, step):
    return {"measured": output.value[0, 0]}


def test_probes_count_only_if_a_schedule_reacts_to_metrics():
    for task, counts in (
        (BASE.task, False),
        (BASE.task.replace(noise=When("loss", below=0.1, before=0.1)), True),
    ):
        config = BASE.replace(task=task)
        names = [
            identity(config.replace(probes=probes))
            for probes in ((), (clock,), (measured,), (clock, measured))
        ]
        assert len(set(names)) == (4 if counts else 1)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_the_default_precision_depends_on_the_device(backend, monkeypatch):
    monkeypatch.setattr("jax.default_backend", lambda: backend)
    assert Config(TASK).precision == ("bf16" if backend == "gpu" else "fp32")


# The table of defaults. Fields with their default are left out of an identity, so a changed default
# needs a new version.

TABLE = Path(__file__).with_name("defaults.json")


def our_classes(base: type[Pytree] = Pytree):
    """Yield the classes of the package, without classes that examples in docstrings define."""
    for kind in base.__subclasses__():
        ours = kind.__module__.startswith(("emergo.training.", "emergo.models.", "emergo.tasks."))
        if ours and getattr(sys.modules[kind.__module__], kind.__name__, None) is kind:
            yield kind
        yield from our_classes(kind)


def defaults_of(kind):
    shown = {
        f.name: None if f.default is dataclasses.MISSING else canonical(f.default)
        for f in fields(kind)
    }
    required = [
        f.name
        for f in fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    return {
        "version": getattr(kind, "version", 1),
        "required": required,
        "defaults": {k: v for k, v in shown.items() if k not in required},
    }


def current_table():
    return {type_name(kind): defaults_of(kind) for kind in {*our_classes(), Config}}


def test_no_default_has_changed_without_a_higher_version():
    """If this fails, raise `version` of the class (or SEMANTICS), and update defaults.json."""
    before = json.loads(TABLE.read_text())
    after = json.loads(json.dumps(current_table()))
    assert after == before
    public = {getattr(room, name) for room in (models, tasks) for name in room.__all__}
    assert {
        type_name(kind) for kind in public if isinstance(kind, type) and issubclass(kind, Pytree)
    } <= set(before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Config("foo"), "Config.task must be a Task, got 'foo'"),
        (lambda: Config(Transformer()), "Config.task must be a Task, got Transformer"),
        (
            lambda: Config(TASK, optimizer="adam"),
            "Config.optimizer must be an Optimizer, got 'adam'",
        ),
        (lambda: Config(TASK, batch=0), "Config.batch must be a whole number of at least 1, got 0"),
        (
            lambda: Config(TASK, threshold=float("nan")),
            "Config.threshold must be a finite number, got nan",
        ),
        (
            lambda: Config(Recall(4, 16), threshold=0.1),
            "guessing one of the context's values is right with probability 1/4",
        ),
        (lambda: Config(Recall(4, 16), threshold=1.5), "at most 1, got 1.5"),
        (lambda: Config(TASK, precision="fp16"), "unknown .*precision 'fp16'; did you mean .*bf16"),
        (
            lambda: Config(TASK, precision="fp64"),
            "Transformer is trained in precision fp32, tf32, bf16; got 'fp64'",
        ),
        (
            lambda: CHAIN.replace(precision="bf16"),
            "MinimalAttention is trained in precision fp32, fp64; got 'bf16'",
        ),
        (
            lambda: Config(TASK, probes=(3,)),
            r"Config.probes must be a tuple of functions, got \(3,\)",
        ),
        (
            lambda: Config(Endless(), threshold=0.1),
            "Endless has no `learned`; leave out the threshold",
        ),
        (lambda: Config(Vague()), "Vague.learned must be em.Above.*, em.Below.* or None, got 0.1"),
        (lambda: SHORT.replace(task__depth=1), "unknown field of SingleLocation 'depth'"),
        (lambda: Run("config", 0), "Run.config must be a Config, got 'config'"),
        (lambda: Run(SHORT, -1), "Run.seed must be a whole number from 0 to 4294967295, got -1"),
        (
            lambda: identity(BASE.replace(interventions=(Replace(0, function=lambda x: x),))),
            "cannot be found again by its name",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_named(make, message):
    with pytest.raises(InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


class Endless(Sized):
    learned = None


class Vague(Endless):
    learned = 0.1


def test_a_task_without_a_threshold():
    assert Config(Endless()).threshold is None
    assert Config(TASK).threshold == 0.1
    assert Config(TASK, threshold=None).threshold is None
    assert (
        identity(Config(TASK, threshold=None))
        != identity(Config(TASK, threshold=0.1))
        == identity(Config(TASK))
    )


def test_schedules_of_the_user():
    """They need a name that can be imported, and extremes if the field has bounds."""

    class Local(Schedule):
        pass

    with pytest.raises(InputError, match="cannot be found again by its name"):
        identity(BASE.replace(task__gain=Local()))
    with pytest.raises(InputError, match=r"Local\.extremes is missing"):
        BASE.replace(task__noise=Local())
