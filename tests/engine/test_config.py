"""The identity of a run: what it depends on and what it must not depend on."""

import dataclasses

import pytest

from emergo._errors import InputError
from emergo.engine import Config, Optimizer, Run
from emergo.engine import _config as module
from emergo.models import Transformer
from emergo.tasks import Recall, SingleLocation

TASK = SingleLocation(16, 4, 2, 0.0, "random", True)
SHORT = Config(TASK, precision="fp32")
SPELLED = Config(
    task=SingleLocation(length=16, dim=4, burst=2, repeat=0.0, position="random", indicator=True, special="basis"),
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
    ),
    optimizer=Optimizer(method="adam", learning_rate=1e-4, momentum=0.0, weight_decay=0.01, b1=0.9, b2=0.999, eps=1e-8),
    batch=32,
    precision="fp32",
    steps=50_000,
    threshold=0.1,
    beyond=0.0,
    tests=128,
)
OTHERS = {
    "task": {"length": 17, "dim": 5, "burst": 3, "repeat": 0.1, "position": "fixed", "indicator": False, "special": "draw"},
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
    },
    "optimizer": {
        "method": "sgd",
        "learning_rate": 2e-4,
        "momentum": 0.5,
        "weight_decay": 0.1,
        "b1": 0.8,
        "b2": 0.99,
        "eps": 1e-7,
        "clip": 1.0,
    },
    "": {
        "batch": 16,
        "precision": "bf16",
        "steps": 100,
        "threshold": 0.2,
        "beyond": 1.0,
        "tests": 64,
        "samples": 32,
        "windows": (2,),
    },
}


def changed(config, part, values):
    if not part:
        return dataclasses.replace(config, **values)
    return dataclasses.replace(config, **{part: dataclasses.replace(getattr(config, part), **values)})


def test_a_pinned_identity():
    """Finished runs are found by it: if this fails, every store and every record is lost. Raise SEMANTICS only on purpose."""
    assert Run(SPELLED, 7).identity == "6b7b63cbc4c1ac6a"


def test_defaults_may_be_left_out():
    assert Run(SHORT, 7).identity == Run(SPELLED, 7).identity


@pytest.mark.parametrize(
    ("part", "one", "two"),
    [
        ("task", {"repeat": 0}, {"repeat": 0.0}),
        ("task", {"repeat": 1}, {"repeat": 1.0}),
        ("optimizer", {"learning_rate": 1}, {"learning_rate": 1.0}),
        ("optimizer", {"momentum": 0}, {"momentum": 0.0}),
        ("", {"beyond": 2, "threshold": 1}, {"beyond": 2.0, "threshold": 1.0}),
        ("optimizer", {"learning_rate": 0.001}, {"learning_rate": 1e-3}),
    ],
)
def test_the_same_number_in_another_form(part, one, two):
    assert Run(changed(SHORT, part, one), 0).identity == Run(changed(SHORT, part, two), 0).identity


def test_every_field_counts():
    """All fields of all parts, so that a new one cannot be forgotten; and all the identities are different."""
    for part, values in OTHERS.items():
        kind = getattr(SHORT, part) if part else SHORT
        nested = set(OTHERS) if not part else set()
        assert {f.name for f in dataclasses.fields(kind)} - nested == set(values)
    # Positions other than random need no mark, so that the indicator can be changed too. Two numbers belong to one method each.
    base = changed(SHORT, "task", {"position": "last"})
    needed = {"momentum": {"method": "sgd"}, "weight_decay": {"method": "adamw"}}
    made = [
        Run(changed(base, part, {name: value} | needed.get(name, {})), 0)
        for part, values in OTHERS.items()
        for name, value in values.items()
        if name not in ("samples", "windows")  # of Markov chains, tests/engine/test_chain.py
    ]
    made.append(Run(changed(base, "optimizer", {"method": "adamw"}), 0))
    identities = {run.identity for run in [*made, Run(base, 0), Run(base, 1)]}
    assert len(identities) == len(made) + 2
    assert all(len(i) == 16 and int(i, 16) >= 0 for i in identities)


def test_semantics_count(monkeypatch):
    before = Run(SHORT, 0).identity
    monkeypatch.setattr(module, "SEMANTICS", module.SEMANTICS + 1)
    assert Run(SHORT, 0).identity != before


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_the_default_precision_is_that_of_the_device(backend, monkeypatch):
    monkeypatch.setattr("jax.default_backend", lambda: backend)
    assert Config(TASK).precision == ("bf16" if backend == "gpu" else "fp32")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Config(TASK, batch=0), "batch must be a whole number of at least 1, got 0"),
        (lambda: Config(TASK, steps=-1), "steps must be a whole number of at least 1"),
        (lambda: Config(TASK, tests=True), "tests must be a whole number of at least 1, got True"),
        (lambda: Config(TASK, threshold=float("nan")), "threshold must be finite, got nan"),
        (lambda: Config(Recall(4, 16)), "guessing a value of the context has 1/4; choose one above that"),
        (lambda: Config(Recall(4, 16), threshold=1.5), "at most 1, e.g. 0.9, got 1.5"),
        (lambda: Config(TASK, beyond=-0.5), "beyond must be at least 0, got -0.5"),
        (lambda: Config(TASK, beyond=float("inf")), "beyond must be at least 0, got inf"),
        (lambda: Config(TASK, precision="fp16"), "unknown precision 'fp16'; did you mean .*bf16"),  # pyright: ignore[reportArgumentType]
        (lambda: Config(SingleLocation(8, 2, position="random")), "set indicator, or position"),
        (lambda: Optimizer(method="adm"), "unknown method 'adm'; did you mean adam"),  # pyright: ignore[reportArgumentType]
        (lambda: Optimizer(learning_rate=0.0), "learning_rate must be positive and finite, got 0.0"),
        (lambda: Optimizer(learning_rate=float("inf")), "learning_rate must be positive and finite, got inf"),
        (lambda: Optimizer(momentum=1.0), r"momentum must be in \[0, 1\), got 1.0"),
        (lambda: Optimizer(b1=-0.1), r"b1 must be in \[0, 1\), got -0.1"),
        (lambda: Optimizer(b2=float("nan")), r"b2 must be in \[0, 1\), got nan"),
        (lambda: Optimizer("adamw", weight_decay=-1.0), "weight_decay must be at least 0, got -1.0"),
        (lambda: Optimizer(momentum=0.9), "momentum belongs to sgd"),
        (lambda: Optimizer("sgd", weight_decay=0.1), "weight_decay belongs to adamw"),
        (lambda: Optimizer(eps=float("inf")), "eps must be at least 0, got inf"),
        (lambda: Run(SHORT, -1), r"seed must be a whole number from 0 to 2\^32 - 1, got -1"),
        (lambda: Run(SHORT, 2**32), "seed must be a whole number"),
        (lambda: Run(SHORT, True), "seed must be a whole number"),
        (lambda: Run(SHORT, 1.0), "seed must be a whole number"),  # pyright: ignore[reportArgumentType]
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
