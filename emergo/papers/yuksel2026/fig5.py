"""Figure 5: the effect of the amount of data on the stages."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import Float

from ...core.plotting import BLACK, GREY, WIDTH, outside, plain_ticks
from ...core.random import fold_in, raw
from ...measure import best_so_far, early_stop
from ...models import MinimalAttention
from ...study import Study
from ...tasks import MarkovChain, divergence
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource
from .._panels import legend
from ._chains import (
    ChainRun,
    ChainRuns,
    on_published_teacher,
    by_part,
    chain_of,
    draw_parts,
    laptop,
    named,
    paper,
    smoke,
)
from ._contexts import ContextPredictors
from ._plots import COLOURS, draw_kl, heading

BEST = {"600": 1.33, "2000": 0.81, "9000": 0.09, "online": 0.02}
STEPS = {"600": 70, "2000": 260, "9000": 760}
"""The published best excess loss, and the step at which it is reached."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Studies of numbers of training sequences.

    - `sizes`: the numbers of sequences; None draws new ones in every step.
    - `published`: the number of seeds on the published teacher.
    """

    study: Study
    sizes: tuple[int | None, ...] = (600, 2000, 9000, None)
    published: int = 0

    def studies(self) -> dict[str, Study]:
        by_size = {
            "online" if n is None else f"{n}": self.study.replace(n_train=n) for n in self.sizes
        }
        return on_published_teacher(by_size, self.published, probes=())


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
    checks += [order_check(own), *predictor_checks(own, next(iter(parts.values())).groups.count)]
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
    by_size = table.assign(log=np.log(table["step"].clip(lower=1))).groupby("n_train", sort=False)
    best = {str(name): float(rows["loss"].mean()) for name, rows in by_size}
    steps = {str(name): float(np.exp(rows["log"].mean())) for name, rows in by_size}
    steps.pop("online", None)
    return best, steps


def loss_checks(table: pd.DataFrame) -> list[Check]:
    """Compare the best loss and its step with the paper."""
    best, steps = best_by_size(table)
    printed = list(best) == list(BEST)
    close = printed and all(abs(best[n] - BEST[n]) < 0.05 + 0.15 * BEST[n] for n in best)
    near = printed and all(abs(np.log(steps[n] / STEPS[n])) < np.log(1.5) for n in steps)
    return [
        Check(
            "best excess loss by number of samples",
            best,
            BEST if printed else None,
            close,
            "within 0.05 + 15%",
        ),
        Check(
            "step of the best, geometric mean over seeds",
            steps,
            STEPS if printed else None,
            near,
            "within 1.5",
        ),
    ]


def order_check(table: pd.DataFrame) -> Check:
    losses, times = (list(values.values()) for values in best_by_size(table))
    words = "early stopping acts as an implicit regularizer"
    holds = np.all(np.diff(losses) < 0) and np.all(np.diff(times) > 0)
    return Check("more data, a better and later best: both orders hold", losses, words, holds)


def predictor_checks(table: pd.DataFrame, groups: int) -> list[Check]:
    """Check which predictor the student resembles at its best step."""
    by_size = table.groupby("n_train", sort=False)
    learned = by_size["groups"].agg(list).tolist()
    contexts = by_size["context"].agg(lambda c: [*map(int, c)]).to_dict()
    means = by_size["context"].mean().to_numpy()
    name = (
        "groups that some head has half of its attention on at the best step: by seed, least "
        "and most data"
    )
    words = (
        "biasing the model toward simpler classes: a truncated predictor with little data, "
        "all groups online"
    )
    holds = max(learned[0]) < groups == min(learned[-1])
    truncated = Check(name, [learned[0], learned[-1]], words, holds)
    name = "tokens that the nearest predictor of restricted context sees, at the best step, by seed"
    words = "early stopping biases the model toward simpler classes: more data, longer context"
    holds = means[0] < means[-1] and np.all(np.diff(means) >= 0)
    return [truncated, Check(name, contexts, words, holds)]


def draw(parts: Mapping[str, ChainRuns], table: pd.DataFrame) -> Plot:
    plot = Plot(figsize=(WIDTH, 4.4), layout="constrained")
    rows: Any = plot.subfigures(2, 1, height_ratios=(1.15, 1))
    left, right = rows[0].subplots(1, 2)
    draw_parts(left, parts, lambda run: best_so_far(excess(run)))
    legend(right, "samples", draw_parts(right, parts, excess))
    for axes, title in ((left, "left  best excess loss so far"), (right, "excess loss")):
        plain_ticks(axes.yaxis)
        axes.set_title(title)
    draw_students(rows[1], {name: runs[0] for name, runs in parts.items()}, table)
    contexts = next(iter(parts.values())).contexts
    lines = [(f"{c} tokens", {"color": COLOURS[j]}) for j, c in enumerate(contexts)]
    others = [
        ("teacher", {"color": GREY, "lw": 0.9}),
        ("best step", {"color": BLACK, "lw": 0.8, "ls": "--"}),
    ]
    outside(rows[1].axes[-1], "student of", [*lines, *others])
    return plot


def draw_students(part: Any, first: Mapping[str, ChainRun], table: pd.DataFrame) -> None:
    """Draw the KL of first seeds from the teacher and from predictors of restricted context."""
    panels = part.subplots(1, len(first), sharey=True, squeeze=False)[0]
    best = table.groupby("n_train")["step"].first()
    for axes, (name, run) in zip(panels, first.items(), strict=True):
        axes.plot(run["step"][1:], run["kl_teacher"][1:], color=GREY, lw=0.9)
        for j, values in enumerate(run["kl_contexts"].T):
            axes.plot(run["step"][1:], values[1:], color=COLOURS[j], lw=1.3)
        axes.axvline(max(best[name], 1), color=BLACK, lw=0.8, ls="--")
        axes.set(xscale="log", xlabel="step", ylim=(0, 4))
        axes.set_title(name if name == "online" else f"{name} samples", fontsize=7.5)
    panels[0].set(ylabel="KL(restricted ‖ student)")
    heading(part, "right  KL from students of restricted context, first seed")


PROBES = (ContextPredictors((2, 4, 6)),)
TITLE = "with little data the best step falls while the student is still a truncated predictor"
PRESETS: Presets = {
    "paper": Sizes(paper(MinimalAttention(), probes=PROBES), published=1),
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
