"""Train the questions of campaigns.py at screen size, on one core of a CPU.

    python -m benchmarks.small_campaigns list
    python -m benchmarks.small_campaigns train NAME WORK SECONDS RECORDS [--tiny]
    python -m benchmarks.small_campaigns summary NAME RECORDS
    python -m benchmarks.small_campaigns answers [RECORDS]

Studies are those of campaigns.py with narrow models, short sequences, small vocabularies and
larger learning rates. `train` works as there. `answers` reads records (by default
results/campaigns-small) and prints ratios, paired by seed, and exponents with 95% intervals.
results/expectations/campaigns-small.md says what we expect.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import emergo as em
from emergo.papers._recall import SMALL as RECALL
from emergo.papers.experiments import coupled
from emergo.papers.experiments.capacity import LAPTOP

from .campaign_parts import FewQueries
from .campaigns import Studies, attention_forms, both_repetitions, main

FOLDER = Path(__file__).parents[1] / "results" / "campaigns-small"
SMALLER = 4  # by which lengths, dims and windows of regression are divided
NARROW = {
    "model__width": 32,
    "optimizer__learning_rate": 5e-4,
    "precision": "fp32",
    "steps": 6000,
}
FORMS = ("softmax", "sigmoid", "linear", "norm before", "rotary positions")
SUM_1 = "sigmoid with a sum of 1"
BASE = RECALL.replace(steps=6000)


def shrink(study: em.Study, **changes: Any) -> em.Study:
    """Return a study of regression at screen size."""
    task: Any = study.base.task
    sizes = {
        "task__length": max(task.length // SMALLER, 2),
        "task__dim": max(task.dim // SMALLER, 1),
    }
    grid: dict[str, Any] = dict(study.grid)
    for name in {"length", "dim", "window"} & set(grid):
        grid[name] = [value // SMALLER for value in grid[name]]
    return study.replace(**(NARROW | sizes | {"grid": grid} | changes))


def small_repetitions() -> Studies:
    """Repetition within and across sequences at once: T = 32, d = 8, and T = 64, d = 32."""
    (large,) = both_repetitions().values()
    wider = shrink(
        large,
        task__length=64,
        task__dim=32,
        model__width=64,
        optimizer__learning_rate=1e-3,
        seeds=4,
    )
    return {"T = 32, d = 8": shrink(large), "T = 64, d = 32": wider}


def small_attention() -> Studies:
    """Forms of attention with four lengths, sigmoid with a sum of 1, windows out of reach."""
    large = attention_forms()
    axes = {"grid": {"length": [8, 16, 32, 64], "dim": [4, 16]}}
    forms = {form: shrink(large[f"{form}, more lengths"], **axes) for form in FORMS}
    windows = shrink(large["windows"], optimizer__learning_rate=1e-3, steps=4000, seeds=3)
    first = {SUM_1: shrink(large[SUM_1], **axes)}
    first |= {form: forms.pop(form) for form in FORMS[:2]}
    return first | {"windows": windows} | forms


def small_recall() -> Studies:
    """Recall with 1 to 8 repeated tokens of 16, and without skip connections."""
    tasks: dict[str, em.Task] = {
        f"{n} tokens": FewQueries(8, 16, tokens=n, repeat=0.4) for n in (1, 2, 4, 8)
    }
    tasks = {"none": em.Recall(8, 16)} | tasks
    studies = {"repeated tokens": em.Study.of(BASE, grid={"task": tasks}, seeds=4)}
    base = BASE.replace(task=em.Recall(4, 8), steps=8000)
    for rate in (1e-3, 3e-3):
        axes = {"skip": [True, False], "vocabulary": [8, 16, 32]}
        config = base.replace(optimizer__learning_rate=rate)
        studies[f"skip connections, rate {rate:g}"] = em.Study.of(config, grid=axes, seeds=3)
    return studies


def small_coupled() -> Studies:
    """Other gains of the given selection, and circuits in four layers: 16 tokens."""
    given = coupled.given(selecting=1.0)
    gains = {
        f"gain {gain:g}": (given[0], given[1].replace(gain=gain), given[2])
        for gain in (4.0, 8.0, 16.0)
    }
    base = BASE.replace(task=em.Recall(8, 16))
    parts = {name: coupled.PARTS[name] for name in (coupled.BOTH, coupled.SELECTING)}
    axes: Mapping[str, Any] = {"interventions": gains, "pairs": [2, 4, 8]}
    studies = {"other gains": em.Study.of(base, grid=axes, seeds=4)}
    for layers in (4, 2):
        config = base.replace(model__layers=layers)
        study = em.Study.of(config, grid={"interventions": parts}, seeds=5)
        studies[f"{layers} layers"] = study
    return studies


def small_capacity() -> Studies:
    """Rates up to a factor of 32 in two cells, and narrow models for 20,000 steps."""
    base = LAPTOP.at(16)
    rate = 2 * LAPTOP.rates(16)["scaled"]
    narrow = base.replace(optimizer__learning_rate=rate, threshold=None, steps=20_000)
    axes = {"skip": [True, False], "dim": [16, 24, 32]}
    studies = {"narrow": em.Study.of(narrow, grid=axes, seeds=3)}
    for length, dim in ((16, 8), (32, 4)):
        for width in LAPTOP.widths:
            tried = LAPTOP.rates(width)
            rates = sorted({tried["fixed"], *(tried["scaled"] * 2**power for power in range(6))})
            config = LAPTOP.at(width).replace(task__length=length, task__dim=dim, steps=4000)
            study = em.Study.of(config, grid={"learning_rate": rates}, seeds=3)
            studies[f"T = {length}, d = {dim}, width {width}"] = study
    return studies


CAMPAIGNS = {
    "repetitions": small_repetitions,
    "attention": small_attention,
    "recall": small_recall,
    "coupled": small_coupled,
    "capacity": small_capacity,
}


if __name__ == "__main__":
    main(CAMPAIGNS, sys.argv[1:], __doc__ or "")
