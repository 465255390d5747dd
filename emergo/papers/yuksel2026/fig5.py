"""Figure 5: the effect of the amount of data on the stages."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import Float

from ...core.plotting import BLACK, GREY, WIDTH, plain_ticks
from ...core.random import fold_in, raw
from ...measure import early_stop
from ...models import MinimalAttention
from ...study import Study
from ...tasks import MarkovChain, divergence
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource
from .._panels import legend
from ._chains import (
    ChainRun,
    ChainRuns,
    by_part,
    chain_of,
    draw_parts,
    laptop,
    named,
    paper,
    smoke,
)
from ._contexts import ContextPredictors
from ._plots import COLOURS, heading

BEST = {"600": 1.33, "2000": 0.81, "9000": 0.09, "online": 0.02}
FIRST_STAGE = 200
"""A step before any of the runs on drawn teachers leaves the first stage."""
STEPS = {"600": 70, "2000": 260, "9000": 760}
"""The published best excess loss, and the step at which it is reached."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Studies of numbers of training sequences.

    The published run starts from Xavier's initialisation: its drops come at the steps of such runs.
    Ours on the published teacher do, too. On drawn teachers the initial scale is 1e-9.

    - `sizes`: the numbers of sequences; None draws new ones in every step.
    - `published`: the numbers of sequences on the published teacher, with the steps of training.
    - `seeds`: the number of seeds on the published teacher.
    """

    study: Study
    sizes: tuple[int | None, ...] = (600, 2000, 9000, None)
    published: tuple[tuple[int | None, int], ...] = ()
    seeds: int = 1

    def studies(self) -> dict[str, Study]:
        studies = {name_of(n): self.study.replace(n_train=n) for n in self.sizes}
        changes: dict[str, Any] = {"model__start": "xavier", "task__maps": "published"}
        changes |= {"seeds": self.seeds, "probes": ()}
        for n, steps in self.published:
            name = f"{name_of(n)}, published teacher"
            studies[name] = self.study.replace(n_train=n, steps=steps, **changes)
        return studies


def name_of(samples: int | None) -> str:
    return "online" if samples is None else f"{samples}"


def excess(run: ChainRun) -> np.ndarray:
    """Return the validation loss above the teacher's on the same sequences."""
    return np.subtract(run["loss"], run["teacher_loss"], dtype=np.float64)


@functools.lru_cache(maxsize=4)
def reference_distances(
    task: MarkovChain, n: int = 512
) -> Float[np.ndarray, "references references"]:
    """Return the KL divergences between references for one draw of the maps.

    Other draws differ by a few hundredths.
    """
    key = raw(jax.random.key(0))
    truth = task.truth(fold_in(key, 0))
    references = task.references(truth, task.sample(fold_in(key, 1), n, truth))
    return np.array([[float(divergence(a, b).mean()) for b in references] for a in references])


def make(settings: Sizes, source: RunSource) -> Outcome:
    parts = by_part(source.runs(settings.studies(), curves=True))
    table = pd.DataFrame([row for name, runs in parts.items() for row in stopped_rows(name, runs)])
    curves = pd.concat(
        [runs.table.assign(n_train=name) for name, runs in parts.items()], ignore_index=True
    )
    own, beside = (table[table["maps"] == maps] for maps in ("drawn", "published"))
    checks = named("published teacher", loss_checks(beside)) if len(beside) else loss_checks(own)
    checks += order_checks(own, next(iter(parts.values())).groups.count)
    if list(parts) == list(BEST):
        checks.append(variance_check(parts))
    return Outcome({"runs": table, "curves": curves}, draw(parts, own), checks=checks)


def stopped_rows(name: str, runs: ChainRuns) -> list[dict[str, Any]]:
    """Return one row per run about its best step.

    Columns include the number of groups to which a head gives half of its attention, and the
    context length of the nearest predictor.
    """
    rows = []
    for run in runs:
        stop = early_stop(
            run["step"],
            excess(run),
            run["kl_references"].T,
            reference_distances(chain_of(run.config)),
        )
        at = int(np.searchsorted(run["step"], stop.step))
        learned = (run.group_attention[at].max(0) >= 0.5).sum()
        compared = "kl_contexts" in run.curves
        context = runs.contexts[run["kl_contexts"][at].argmin()] if compared else None
        row = {"n_train": name, "seed": run.seed, "maps": run.maps, **stop._asdict()}
        rows.append(row | {"groups": learned, "context": context})
    return rows


def best_by_size(table: pd.DataFrame) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean best loss by number of samples, and its geometric mean step if offline."""
    best = {}
    steps = {}
    for name, rows in table.groupby("n_train", sort=False):
        best[str(name)] = float(rows["loss"].mean())
        if name != "online":
            steps[str(name)] = float(np.exp(np.log(rows["step"].clip(lower=1)).mean()))
    return best, steps


def loss_checks(table: pd.DataFrame) -> list[Check]:
    """Compare the best loss and its step with the paper, if the numbers of samples are its own."""
    best, steps = best_by_size(table)
    printed = list(best) == list(BEST)
    close = printed and all(abs(best[n] - BEST[n]) < 0.02 + 0.1 * BEST[n] for n in best)
    near = printed and all(abs(np.log(steps[n] / STEPS[n])) < np.log(1.25) for n in steps)
    losses = BEST if printed else None
    times = STEPS if printed else None
    return [
        Check("best excess loss by number of samples", best, losses, close, "within 0.02 + 10%"),
        Check(
            "step of the best, geometric mean over seeds",
            steps,
            times,
            near,
            "within a factor of 1.25",
        ),
    ]


def order_checks(table: pd.DataFrame, groups: int) -> list[Check]:
    """Check the best steps: their order, and which predictor the student resembles there."""
    losses, times = (list(values.values()) for values in best_by_size(table))
    by_size = table.groupby("n_train", sort=False)
    learned = by_size["groups"].agg(list).tolist()
    contexts = by_size["context"].agg(lambda c: [*map(int, c)]).to_dict()
    means = by_size["context"].mean().to_numpy()
    return [
        Check(
            "more data, a better and later best: both orders hold",
            losses,
            "early stopping acts as an implicit regularizer",
            np.all(np.diff(losses) < 0) and np.all(np.diff(times) > 0),
        ),
        Check(
            "groups that some head has half of its attention on at the best step: by seed, least "
            "and most data",
            [learned[0], learned[-1]],
            "biasing the model toward simpler classes: a truncated predictor with little data, "
            "all groups online",
            max(learned[0]) < groups == min(learned[-1]),
        ),
        Check(
            "tokens that the nearest predictor of restricted context sees, at the best step, by "
            "seed",
            contexts,
            "early stopping biases the model toward simpler classes: more data, longer context",
            means[0] < means[-1] and np.all(np.diff(means) >= 0),
        ),
    ]


def variance_check(parts: Mapping[str, ChainRuns]) -> Check:
    """Compare the variance of the first stage with that of least squares, 1/N for N samples.

    It is the least excess loss before any run leaves this stage, above that with fresh data.
    """
    levels = {
        name: runs.on("drawn").mean(lambda run: excess(run)[run["step"] <= FIRST_STAGE].min())
        for name, runs in parts.items()
    }
    variance = {name: float(level - levels["online"]) for name, level in levels.items()}
    del variance["online"]
    power = np.polyfit(np.log([float(name) for name in variance]), np.log([*variance.values()]), 1)
    words = f"excess loss by step {FIRST_STAGE} above that with fresh data: exponent of the samples"
    return Check(words, power[0], None, abs(power[0] + 1) < 0.25, "-1, as in least squares")


def draw(parts: Mapping[str, ChainRuns], table: pd.DataFrame) -> Plot:
    plot = Plot(figsize=(WIDTH, 4.4), layout="constrained")
    rows: Any = plot.subfigures(2, 1, height_ratios=(1.15, 1))
    left, right = rows[0].subplots(1, 2)
    draw_parts(left, parts, lambda run: np.fmin.accumulate(excess(run)))
    legend(right, "samples", draw_parts(right, parts, excess))
    for axes, title in ((left, "left  best excess loss so far"), (right, "excess loss")):
        plain_ticks(axes.yaxis)
        if any(run.maps == "published" for runs in parts.values() for run in runs):
            axes.set_xlabel("step (dashed: published teacher, from Xavier's start)")
        axes.set_title(title)
    draw_students(rows[1], parts, table)
    return plot


def draw_students(part: Any, parts: Mapping[str, ChainRuns], table: pd.DataFrame) -> None:
    """Draw the KL of first seeds from the teacher and from predictors of restricted context."""
    panels = part.subplots(1, len(parts), sharey=True, squeeze=False)[0]
    best = table.groupby("n_train")["step"].first()
    students = {"teacher": GREY}
    for axes, (name, runs) in zip(panels, parts.items(), strict=True):
        run = runs[0]
        students |= {f"{c} tokens": COLOURS[j] for j, c in enumerate(runs.contexts)}
        values = np.column_stack([run["kl_teacher"], run["kl_contexts"]])
        for curve, colour in zip(values.T, students.values(), strict=True):
            axes.plot(run["step"][1:], curve[1:], color=colour, lw=1.2)
        axes.axvline(max(best[name], 1), color=BLACK, lw=0.8, ls="--")
        axes.set(xscale="log", xlabel="step", ylim=(0, 4))
        axes.set_title(name if name == "online" else f"{name} samples", fontsize=7.5)
    panels[0].set(ylabel="KL(restricted ‖ student)")
    legend(panels[-1], "student of", students, ("best step", {"color": BLACK, "ls": "--"}))
    heading(part, "right  KL from students of restricted context, first seed")


PROBES = (ContextPredictors((2, 4, 6)),)
TITLE = "with little data the best step falls while the student is still a truncated predictor"
PRESETS: Presets = {
    "paper": Sizes(
        paper(MinimalAttention(), probes=PROBES),
        # Fig. 4 has the last one; the others are as long as the published plot.
        published=((600, 1000), (2000, 1000), (9000, 2000), (None, 1000)),
    ),
    "laptop": Sizes(
        laptop(MinimalAttention(), seeds=1, batch=128, steps=800, probes=PROBES),
        sizes=(100, 400, None),
    ),
    "smoke": Sizes(smoke(seeds=1, probes=(ContextPredictors((1, 2)),)), sizes=(16, None)),
}
FIGURE = Figure(
    "yuksel2026/fig5",
    TITLE,
    PRESETS,
    make,
    {"paper": 51000, "laptop": 66, "smoke": 18},
    curves=True,
)
