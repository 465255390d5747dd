"""Repetition in small language models: does it bring heads that copy sooner, and what does it cost?

Sequences repeat a part of themselves, come from a small subset of the corpus, or repeat a phrase.
Repetition ends after a share of training, or as soon as a head has an induction score. Validation
text has no repetition. A run is compared with the run without repetition of the same seed.

The paper preset reads a corpus of code and one of English; results/corpora.csv says how to make
them. The other presets read the source of Python's standard library, so their runs differ between
versions of Python.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array
from matplotlib.axes import Axes
from scipy.special import stdtrit

from ...core.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, key, level, step_curve
from ...core.pytree import Schedule, per_run
from ...measure import emergence
from ...models import Transformer
from ...study import Runs, Study
from ...tasks import Text
from ...training import Config, Optimizer, Ramp
from .._figure import Check, Figure, Outcome, Plot, RunSource
from .._panels import panels
from .._source import curve
from ._shared import draw_interval, name_rows

KINDS = {"copy": "copies", "subset_share": "subset", "phrase_repeats": "phrase"}
"""Kinds of repetition by the field of the task."""
NONE = "none"
COPIED = 0.5  # accuracy of copying random tokens that counts as learned
INDUCES = 0.3  # score of an induction head; chosen after the screen
HOLD = 2  # evaluations in a row
CURVES = ("step", "loss", "accuracy_copied", "in_context", "new_share", "induction_head")


class UntilInduction(Schedule):
    """`before` until step `at`, or until a head has an induction score of `above`; then 0.

    With `above=2`, which no score reaches, this is a switch. One class for both lets all conditions
    share a program.
    """

    before: float = per_run()
    at: int = per_run(low=0)
    above: float = per_run(default=2.0)

    def start(self) -> Array:
        return jnp.array(False)

    def update(self, state: Array, metrics: Mapping[str, Array]) -> Array:
        return state | (jnp.max(metrics["induction_head"]) >= self.above)

    def value(self, step: Any, state: Array) -> Array:
        return jnp.where(state | (step >= self.at), 0.0, self.before)

    def extremes(self) -> tuple[float, ...]:
        return (self.before, 0.0)

    def metrics(self) -> tuple[str, ...]:
        return ("induction_head",)


class Repetition(NamedTuple):
    """One kind of repetition, its amount, and its end.

    - `end`: a share of training, or None: when a head has an induction score of `INDUCES`.
    """

    kind: str
    amount: float
    end: float | None = 1.0

    @property
    def label(self) -> str:
        times = " times" if self.kind == "phrase_repeats" else ""
        what = f"{KINDS[self.kind]} {self.amount:g}{times}"
        if self.end is None:
            return f"{what} until a head"
        return what if self.end == 1 else f"{what} until {self.end:.0%}"

    def schedule(self, steps: int) -> UntilInduction:
        if self.end is None:
            return UntilInduction(self.amount, at=steps, above=INDUCES)
        return UntilInduction(self.amount, at=round(self.end * steps))


def repeated(base: Config, repetition: Repetition | None) -> Text:
    """Return the task of a run with a repetition; None stands for text without one."""
    schedules: dict[str, Any] = {kind: UntilInduction(0.0, at=base.steps) for kind in KINDS}
    if repetition is not None:
        schedules[repetition.kind] = repetition.schedule(base.steps)
    task: Any = base.task
    return task.replace(**schedules)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the figure.

    - `bases`: training without repetition, by the name of the corpus.
    - `repetitions`: the conditions. The first was the best of the screen; intervals of its savings
      have Bonferroni's correction for `candidates` conditions.
    """

    bases: Mapping[str, Config]
    repetitions: tuple[Repetition, ...]
    seeds: tuple[int, ...]
    candidates: int = 1

    def studies(self) -> dict[str, Study]:
        return {
            corpus: compared(base, self.repetitions, self.seeds)
            for corpus, base in self.bases.items()
        }


def compared(base: Config, repetitions: Sequence[Repetition], seeds: Sequence[int]) -> Study:
    """Return a study of several repetitions and of none."""
    tasks = {NONE: repeated(base, None)}
    tasks |= {r.label: repeated(base, r) for r in repetitions}
    return Study.of(base, grid={"task": tasks}, seeds=list(seeds))


Curves = Mapping[str, np.ndarray]
Conditions = Mapping[tuple[str, int], Curves]
"""Curves by condition and seed."""


def conditions_of(runs: Runs) -> dict[tuple[str, int], Curves]:
    """Return the curves of runs by condition and seed."""
    labels = map(str, runs.table["task"])
    return {
        (label, result.run.seed): {name: curve(result, name) for name in CURVES}
        for label, result in zip(labels, runs, strict=True)
    }


def steps_to_loss(curves: Curves, loss: float) -> float:
    """Return the step at which validation loss passes a value for good; NaN if it does not."""
    above = np.flatnonzero(curves["loss"] > loss)
    after = 0 if not len(above) else above[-1] + 1
    return float(curves["step"][after]) if after < len(curves["step"]) else math.nan


def unique_steps(curves: Curves) -> float:
    """Return the number of steps of a run, counting only tokens that were new."""
    step, share = curves["step"].astype(float), curves["new_share"]
    return float(np.sum(share[:-1] * np.diff(step)))


def best_head(curves: Curves) -> np.ndarray:
    """Return the largest induction score of a head in each evaluation."""
    scores = curves["induction_head"]
    return np.max(scores.reshape(len(scores), -1), 1)


def speed_up(curves: Curves, none: Curves) -> np.ndarray:
    """Return how many steps none takes to a loss, over the steps of this run; NaN if it never does.

    `none` is the run without repetition of the same seed.
    """
    lowest = np.minimum.accumulate(none["loss"])
    steps = np.interp(-curves["loss"], -lowest, none["step"], right=math.nan)
    return np.divide(steps, curves["step"], where=curves["step"] > 0, out=np.ones(len(steps)))


def row_of(curves: Curves, none: Curves | None) -> dict[str, Any]:
    """Return what is measured in a run, and compared with the run without repetition.

    - `induction`, `copying`: steps until a head has an induction score of `INDUCES`, and until half
      of random repeated tokens are predicted; NaN if that does not happen.
    - `copied`, `loss`, `in_context`: at the end.
    - `loss_change`: the loss minus that of none.
    - `excess`: the loss minus that of none after as many tokens that were new.
    - `saved`: how much sooner than none the run reaches the final loss of none for good, as a share
      of all steps; an upper bound if it never does, which `behind` says.
    - `saved_halfway`: the share that it saves on the way to the loss of none after half its steps.
    """
    row: dict[str, Any] = {}
    levels = {"induction": (best_head(curves), INDUCES)}
    levels["copying"] = (curves["accuracy_copied"], COPIED)
    for name, (values, height) in levels.items():
        found = emergence(curves["step"], values, height, "above", hold=HOLD)
        row[name] = found.time if found.state == "reached" else math.nan
    ends = {"copied": "accuracy_copied", "loss": "loss", "in_context": "in_context"}
    row |= {name: float(curves[column][-1]) for name, column in ends.items()}
    if none is None:
        return row
    step, loss = none["step"], none["loss"]
    row["loss_change"] = row["loss"] - float(loss[-1])
    row["excess"] = row["loss"] - float(np.interp(unique_steps(curves), step, loss))
    own, reached = (steps_to_loss(run, float(loss[-1])) for run in (none, curves))
    row["behind"] = math.isnan(reached)
    row["saved"] = (own - (step[-1] if row["behind"] else reached)) / step[-1]
    middle = np.searchsorted(step, step[-1] / 2)
    row["saved_halfway"] = 1 - steps_to_loss(curves, float(loss[middle])) / float(step[middle])
    return row


def rows_of(conditions: Conditions) -> pd.DataFrame:
    """Return one row per run."""
    rows = [
        {"repetition": label, "seed": seed} | row_of(curves, conditions.get((NONE, seed)))
        for (label, seed), curves in conditions.items()
    ]
    return pd.DataFrame(rows)


def interval(values: Any, candidates: int = 1) -> tuple[float, float, float]:
    """Return a mean and its 95% interval by Student's t, Bonferroni's for several candidates."""
    known = pd.Series(values, dtype=float).dropna()
    if len(known) < 2:
        return float(known.mean()), math.nan, math.nan
    quantile = stdtrit(len(known) - 1, 1 - 0.025 / candidates)
    half = float(quantile * known.std() / math.sqrt(len(known)))
    mean = float(known.mean())
    return mean, mean - half, mean + half


MEASURED = ("induction", "copied", "loss_change", "saved", "saved_halfway", "excess", "in_context")


def summary_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per condition: means with intervals, and how many runs never get there."""
    rows = []
    for (corpus, repetition), group in table.groupby(["corpus", "repetition"], sort=False):
        row: dict[str, Any] = {"corpus": corpus, "repetition": repetition, "runs": len(group)}
        row["never copies"] = int(group["copying"].isna().sum())
        row["no head"] = int(group["induction"].isna().sum())
        row["behind"] = int(group["behind"].sum())
        rows.append(row | {name: [[*interval(group[name])]] for name in MEASURED})
    return pd.DataFrame(rows)


def checks_of(table: pd.DataFrame, settings: Settings) -> Iterator[Check]:
    """Compare the runs with results/expectations/text.md."""
    best, *others = (repetition.label for repetition in settings.repetitions)
    policies = [r.label for r in settings.repetitions if r.end is None]
    for corpus, runs in table.groupby("corpus", sort=False):
        by = {label: rows.set_index("seed") for label, rows in runs.groupby("repetition")}
        saved = interval(by[best]["saved"], settings.candidates)
        words = f"{corpus}: share of steps saved by {best}"
        yield _check(words, saved, 0, math.inf, "above 0, or repetition saves nothing")
        for label in (best, *policies):
            ratio = by[label]["induction"] / by[NONE]["induction"]
            words = f"{corpus}: steps to an induction head, {label} / none"
            yield _check(words, interval(ratio), 0.35, 0.65, "0.35 to 0.65")
        for label in policies:
            change = interval(by[label]["loss"] - by[best]["loss"])
            words = f"{corpus}: final loss, {label} - {best}"
            yield _check(words, change, -0.01, 0.01, "within 0.01")
        for label in (label for label in others if label.startswith("copies 0.1")):
            words = f"{corpus}: change of the final loss by {label}"
            yield _check(words, interval(by[label]["loss_change"]), -0.01, 0.01, "within 0.01")
        words = f"{corpus}: change of the final loss by {others[-1]}"
        yield _check(words, interval(by[others[-1]]["loss_change"]), 0.2, math.inf, "over 0.2")


def _check(
    name: str, measured: tuple[float, float, float], low: float, high: float, expected: str
) -> Check:
    value, *ends = measured
    holds = None
    if not math.isnan(ends[0]):
        inside = low <= ends[0] and ends[1] <= high
        outside = ends[1] < low or high < ends[0]
        holds = True if inside else False if outside else None
    return Check(name, [value, *ends], None, holds, expected, interval=True)


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies(), curves=True)
    conditions = {corpus: conditions_of(runs) for corpus, runs in parts.items()}
    frames = [rows_of(curves).assign(corpus=corpus) for corpus, curves in conditions.items()]
    table = pd.concat(frames, ignore_index=True)
    plot = draw(conditions, table, settings)
    summary = {"conditions": summary_of(table)}
    return Outcome({"runs": table}, plot, checks=[*checks_of(table, settings)], summary=summary)


def colours_of(settings: Settings) -> dict[str, str]:
    """Return the colours of the conditions that are drawn as curves."""
    best, *others = settings.repetitions
    colours = {NONE: BLACK, best.label: GREEN}
    colours |= {r.label: BLUE for r in others if r.end is None}
    return colours | {others[-1].label: ORANGE}


def draw(conditions: Mapping[str, Conditions], table: pd.DataFrame, settings: Settings) -> Plot:
    """Draw heads and speed-ups on the last corpus, and changes of the loss on all."""
    corpus = [*conditions][-1]
    titles = (f"a  heads, {corpus}", f"b  speed-up, {corpus}", "c  final loss - none")
    plot, (a, b, c) = panels(2.8, *titles)
    colours = colours_of(settings)
    curves = conditions[corpus]
    for (label, seed), run in curves.items():
        if label not in colours:
            continue
        look = {"color": colours[label], "lw": 0.8}
        step_curve(a, run["step"], best_head(run), **look)
        if label != NONE and (NONE, seed) in curves:
            step_curve(b, run["step"], speed_up(run, curves[NONE, seed]), **look)
    level(a, INDUCES, "")
    level(b, 1, "none")
    a.set(ylabel="largest induction score", ylim=(0, 0.9), xlabel="step")
    b.set(ylabel="steps of none to this loss / steps", xlabel="step", xlim=(100, None))
    key(a, [(name, {"color": colour}) for name, colour in colours.items()], loc="upper left")
    draw_changes(c, table, [r.label for r in settings.repetitions])
    return plot


def draw_changes(axes: Axes, table: pd.DataFrame, labels: Sequence[str]) -> None:
    """Draw the change of the final loss by condition: a row each, and a dot per corpus."""
    corpora = [*table["corpus"].unique()]
    looks = dict(zip(corpora, (GREY, BLACK), strict=False))
    for (corpus, label), rows in table.groupby(["corpus", "repetition"]):
        if label in labels:
            value, *ends = interval(rows["loss_change"])
            height = labels.index(label) + 0.2 * (corpora.index(corpus) - (len(corpora) - 1) / 2)
            draw_interval(axes, value, ends, height, looks[corpus])
    name_rows(axes, [label.replace(" until", "\nuntil") for label in labels])
    axes.axvline(0, color=GREY, lw=0.8, ls=":")
    axes.set_xlabel("nats per token")
    key(axes, [(name, {"color": colour}) for name, colour in looks.items()], loc="upper right")


# The paper preset: four layers, 5 million parameters, and no token read twice.
LENGTH = 256
VOCABULARY = 4096
BATCH = 64
TOKENS = 3000 * BATCH * LENGTH  # at most so many are read
# The names of the corpora and tokenizers of results/corpora.csv, and their tokens for training.
CORPORA = {
    "code": ("text:31cafe6cf967118a8f3757d0d77f1a2b", "bpe-4096-47869cc64c012c69", 75267363),
    "English": ("text:11a3af6fa100dbfb9a3da777e5341ab2", "bpe-4096-57b13081df168901", 54574279),
}


def text_of(corpus: str, length: int = LENGTH) -> Text:
    """Return the task without repetition on a corpus."""
    source, tokenizer, _ = CORPORA[corpus]
    sizes = {"length": length, "vocabulary": VOCABULARY}
    return Text(source, **sizes, tokenizer=tokenizer, copy_after="random")


def steps_of(corpus: str, length: int = LENGTH, batch: int = BATCH) -> int:
    """Return the number of steps of a run, in which no token is read twice."""
    windows = (CORPORA[corpus][-1] - 1) // length
    return min(windows, TOKENS // length) // batch


def config_of(corpus: str, width: int = 256, rate: float = 1e-3) -> Config:
    """Return a run that reads every token at most once.

    **Arguments:**

    - `width`: 256, or 512 for a reference model of 17 million parameters.
    - `rate`: the learning rate, after 200 steps in which it rises from 0.
    """
    model = Transformer(
        layers=4,
        heads=8,
        width=width,
        norm="pre",
        mask="causal",
        activation="gelu",
        positions="rope",
        initial="normal",
    )
    rises: Any = Ramp(0.0, rate, begin=0, end=200)
    optimizer = Optimizer("adamw", rises, clip=1.0, b2=0.95, weight_decay=0.1)
    return Config(
        *(text_of(corpus), model, optimizer),
        batch=BATCH,
        precision="bf16",
        steps=steps_of(corpus),
        threshold=None,
        n_test=BATCH,
    )


# The screen chose by its rule the three conditions with the lowest final loss, and the one with the
# highest. The policy ends the best condition as soon as a head has formed.
CONFIRMED = (
    Repetition("phrase_repeats", 12.0, 0.2),
    Repetition("phrase_repeats", 12.0, None),
    Repetition("copy", 0.1, 0.5),
    Repetition("copy", 0.1, 0.2),
    Repetition("subset_share", 0.6),
)
SMALL = Config(
    Text(length=64, copy_after="random"),
    Transformer(
        layers=2,
        heads=2,
        width=64,
        mlp_factor=1,
        norm="pre",
        mask="causal",
        activation="gelu",
        positions="rope",
        initial="normal",
    ),
    Optimizer("adam", 3e-3),
    batch=32,
    precision="fp32",
    steps=1600,
    threshold=None,
    n_test=64,
)
TINY = SMALL.replace(
    task__length=16, task__phrase_length=4, model__width=8, batch=8, steps=100, n_test=8
)
COPIES = (Repetition("copy", 0.8, 0.6), Repetition("copy", 0.8, None), Repetition("copy", 0.8))
LIBRARY = "library"
FIGURE = Figure(
    "emergo/text",
    "repetition in small language models: heads that copy, steps saved, and its cost",
    {
        "paper": Settings(
            {name: config_of(name) for name in CORPORA}, CONFIRMED, (4, 5, 6, 7), candidates=3
        ),
        "laptop": Settings({LIBRARY: SMALL}, COPIES, (0,)),
        "smoke": Settings({LIBRARY: TINY}, COPIES, (0,)),
    },
    make,
    {"paper": 1.5e6, "laptop": 130, "smoke": 25},
    curves=True,
    local=("laptop", "smoke"),
)
