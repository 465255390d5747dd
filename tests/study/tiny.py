"""A study that trains for real in a moment, for the tests."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from emergo.core.json import seal
from emergo.models import Transformer
from emergo.study import Study
from emergo.tasks import SingleLocation
from emergo.training import Optimizer


def tiny(**changes) -> Study:
    """Return a study of a task that a small model learns within some hundred steps."""
    usual = {
        "batch": 8,
        "precision": "fp32",
        "steps": 2000,
        "threshold": 0.02,
        "n_test": 32,
        "name": "tiny",
    }
    task = SingleLocation(4, 2, position="random", indicator=True)
    model = Transformer(layers=1, heads=1, width=8)
    return Study(task, model, Optimizer(learning_rate=3e-3), **(usual | changes))


# Six runs of one program in two units.
STUDY = tiny(grid={"learning_rate": [5e-4, 1e-3]}, seeds=3, unit=3)


def rewrite(path: Path, **changes: Any) -> None:
    """Change the content of a stored file and its checksum, as an attacker would."""
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    path.write_bytes(seal(content | changes))


def quiet(now) -> None:
    """Ignore progress."""


def same_tables(one: pd.DataFrame, two: pd.DataFrame) -> None:
    """Assert that two tables have the same runs with the same outcomes, bit for bit."""
    names = ["identity", "learning_rate", "seed", "state", "steps", "censored"]
    names += ["plateau", "plateau_low", "plateau_high"]
    one, two = (t.sort_values("identity", ignore_index=True)[names] for t in (one, two))
    pd.testing.assert_frame_equal(one, two, check_exact=True)
