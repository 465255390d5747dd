"""A study that trains for real in a moment, for the tests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from emergo._json import seal
from emergo.engine import Optimizer
from emergo.models import Transformer
from emergo.studies import Study
from emergo.tasks import SingleLocation


def tiny(**changes) -> Study:
    """A study of a task that a small model learns within some hundred steps."""
    usual = {"batch": 8, "precision": "fp32", "steps": 2000, "threshold": 0.02, "n_test": 32, "name": "tiny"}
    task, model = SingleLocation(4, 2, position="random", indicator=True), Transformer(layers=1, heads=1, width=8)
    return Study(task, model, Optimizer(learning_rate=3e-3), **(usual | changes))


STUDY = tiny(grid={"learning_rate": [5e-4, 1e-3]}, seeds=3, unit=3)
"""Six runs of one program in two units."""


def rewrite(path: Path, **changes: Any) -> None:
    """Gives a file of a store other content and the checksum of that, as somebody would who means to deceive."""
    content = {name: value for name, value in json.loads(path.read_text()).items() if name != "checksum"}
    path.write_bytes(seal(content | changes))


def quiet(now) -> None:
    """Progress that is not shown."""


def same_tables(one: pd.DataFrame, two: pd.DataFrame) -> None:
    """The same runs with the same outcomes, bit for bit: the same programs computed them."""
    names = ["identity", "learning_rate", "seed", "plateau", "plateau_low", "plateau_high", "censored", "state", "steps"]
    one, two = (t.sort_values("identity").reset_index(drop=True)[names] for t in (one, two))
    assert len(one) == len(two)
    for name in names:
        np.testing.assert_array_equal(one[name], two[name])
