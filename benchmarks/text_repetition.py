"""Does repetition bring in-context learning sooner in language models on real text?

    python -m benchmarks.text_repetition list
    python -m benchmarks.text_repetition train NAME WORK SECONDS RECORDS [--tiny]
    python -m benchmarks.text_repetition report [RECORDS]

The corpora are those of results/corpora.csv. `train` needs a GPU, and the archives of the corpora
(text_corpora.py), unpacked into one folder, which the variable EMERGO_CORPORA names. It works as in
campaigns.py: finished runs are written at once, and the same command goes on from there. `report`
reads records (by default results/text-repetition) and prints the law of the first campaign, and for
each condition of the others when copying and heads emerged, what was left of copying at the end,
and the validation loss, with ratios to runs without repetition of the same seed.

No run reads a token twice, except those that it repeats on purpose. results/expectations/text.md
says what we expect.
"""

import dataclasses
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

import emergo as em
from emergo.measure import emergence
from emergo.store import Records, read_records
from emergo.study import Runs
from emergo.tasks import find_data

from .campaign_parts import UntilInduction
from .campaigns import Studies, found, main
from .text_corpora import LENGTH, TABLE, VOCABULARY

FOLDER = Path(__file__).parents[1] / "results" / "text-repetition"
BATCH = 64
TOKENS = 3000 * BATCH * LENGTH  # at most so many tokens are read, to end within one call
LEARNED = 0.5  # accuracy of copying random tokens
INDUCES = 0.3  # score of an induction head; chosen after the screen
HOLD = 2  # evaluations in a row
WAVES = {"screen": 14}  # runs that train together, and are written together; else 12
KINDS = ("copy", "subset_share", "phrase_repeats")
NONE = "none"
POLICY = "until induction"


class Repetition(NamedTuple):
    """One kind of repetition, its amount, and the share of training after which it ends."""

    kind: str
    amount: float
    end: float = 1.0

    @property
    def label(self) -> str:
        until = "" if self.end == 1 else f" until {self.end:.0%}"
        return f"{self.kind} {self.amount:g}{until}"


# Three amounts of each kind, kept and switched off after a fifth and a half of training.
AMOUNTS = {
    "copy": (0.1, 0.3, 0.8),
    "subset_share": (0.1, 0.3, 0.6),
    "phrase_repeats": (1.0, 4.0, 12.0),
}
ENDS = (1.0, 0.2, 0.5)
SCREENED = tuple(
    Repetition(kind, amount, end)
    for end, (kind, amounts) in itertools.product(ENDS, AMOUNTS.items())
    for amount in amounts
)


class Corpus(NamedTuple):
    """A row of results/corpora.csv."""

    source: str
    tokenizer: str
    training_tokens: int


@functools.cache
def corpus_of(name: str) -> Corpus:
    table = pd.read_csv(TABLE, index_col="name")[[*Corpus._fields]]
    return Corpus(*table.to_dict("split")["data"][[*table.index].index(name)])


def text_of(corpus: str, length: int = LENGTH) -> em.Text:
    """Return the task without repetition on a corpus."""
    found = corpus_of(corpus)
    return em.Text(
        found.source,
        length=length,
        vocabulary=VOCABULARY,
        tokenizer=found.tokenizer,
        copy_after="random",
    )


def steps_of(corpus: str, length: int = LENGTH, batch: int = BATCH) -> int:
    """Return the number of steps of a run, in which no token is read twice."""
    windows = (corpus_of(corpus).training_tokens - 1) // length
    return min(windows, TOKENS // length) // batch


def config_of(corpus: str, width: int, rate: float = 1e-3, **changes: Any) -> em.Config:
    """Return a run of four layers that reads every token at most once.

    **Arguments:**

    - `width`: 256 for screens, 512 for the reference model.
    - `rate`: the learning rate, after 200 steps in which it rises from 0.
    """
    model = em.Transformer(
        layers=4,
        heads=8,
        width=width,
        norm="pre",
        mask="causal",
        activation="gelu",
        positions="rope",
        initial="normal",
    )
    rises: Any = em.Ramp(0.0, rate, begin=0, end=200)
    config = em.Config(
        text_of(corpus),
        model,
        em.Optimizer("adamw", rises, clip=1.0, b2=0.95, weight_decay=0.1),
        batch=BATCH,
        precision="bf16",
        steps=steps_of(corpus),
        threshold=None,
        n_test=BATCH,
    )
    return config.replace(**changes)


def repeated(base: em.Config, repetition: Repetition | None) -> em.Text:
    """Return the task with a repetition. Every kind is a switch, so that all share a program."""
    task: Any = base.task
    switches = {kind: em.Switch(0.0, 0.0, at=base.steps) for kind in KINDS}
    if repetition is not None:
        at = round(repetition.end * base.steps)
        switches[repetition.kind] = em.Switch(repetition.amount, 0.0, at=at)
    return task.replace(**switches)


def compared(
    base: em.Config, repetitions: Iterable[Repetition | None], seeds: Iterable[int]
) -> em.Study:
    """Return a study of several repetitions; None stands for text without repetition."""
    tasks = {NONE if r is None else r.label: repeated(base, r) for r in repetitions}
    return em.Study.of(base, grid={"task": tasks}, seeds=list(seeds))


def law() -> Studies:
    """Steps until copying emerges without repetition, by batch, length and model size."""
    cells = [(b, length, 4, 256) for length in (128, 256, 64, 512) for b in (32, 128, 8)]
    cells += [(32, LENGTH, 2, 256), (32, LENGTH, 4, 512)]
    axes: dict[str, list[Any]] = {"batch": [], "length": [], "steps": [], "layers": []}
    axes["width"] = []
    for batch, length, layers, width in cells:
        values = (batch, length, steps_of("code", length, batch), layers, width)
        for column, value in zip(axes.values(), values, strict=True):
            column.append(value)
    base = config_of("code", 256, n_test=32, threshold=LEARNED)
    return {"cells": em.Study.of(base, zip=axes, seeds=3)}


def screen() -> Studies:
    """Each kind of repetition in three amounts, kept and dropped, in a small model."""
    base = config_of("code", 256)
    return {"code": compared(base, [None, *SCREENED], range(2))}


def limits() -> Studies:
    """Other learning rates, and smaller batches, which take more steps for the same tokens."""
    chosen = [None, *CONFIRMED[:1]]
    studies = {}
    for rate in (3e-4, 3e-3):
        base = config_of("code", 256, rate)
        studies[f"rate {rate:g}"] = compared(base, chosen, range(4, 7))
    small = config_of("code", 256, batch=16, steps=steps_of("code", batch=16))
    studies["batch 16"] = compared(small, chosen, range(4, 7))
    return studies


# What the screen chose by its rule, from the 21 of 28 conditions that were trained: the three best
# conditions by validation loss at the end, and the one that hurt most.
CONFIRMED = (
    Repetition("phrase_repeats", 12.0, 0.2),
    Repetition("copy", 0.1, 0.5),
    Repetition("copy", 0.1, 0.2),
    Repetition("subset_share", 0.6),
)


def confirm(corpus: str, width: int) -> Studies:
    """Return none, the chosen conditions and the policy, with new seeds."""
    base = config_of(corpus, width)
    none: Any = base.task
    none = none.replace(**{kind: UntilInduction(0.0, at=base.steps) for kind in KINDS})
    tasks = {NONE: none}
    for kind, amount, end in CONFIRMED:
        until = UntilInduction(amount, at=round(end * base.steps))
        tasks[Repetition(kind, amount, end).label] = none.replace(**{kind: until})
        if POLICY not in tasks:
            until = UntilInduction(amount, at=base.steps, above=INDUCES)
            tasks[POLICY] = none.replace(**{kind: until})
    return {"conditions": em.Study.of(base, grid={"task": tasks}, seeds=list(range(4, 8)))}


def confirm_code() -> Studies:
    """None, the chosen conditions and the policy in the model of the screen, on code."""
    return confirm("code", 256)


def confirm_english() -> Studies:
    """The same on English."""
    return confirm("english", 256)


def reference_code() -> Studies:
    """The same with the reference model, on code."""
    return confirm("code", 512)


def reference_english() -> Studies:
    """The same with the reference model, on English."""
    return confirm("english", 512)


CAMPAIGNS: Mapping[str, Callable[[], Studies]] = {
    "law": law,
    "screen": screen,
    "confirm-code": confirm_code,
    "confirm-english": confirm_english,
    "reference-code": reference_code,
    "reference-english": reference_english,
    "limits": limits,
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What is read from the curves of one run.

    - `copying`: steps until half of random repeated tokens were predicted; NaN if they never were.
    - `induction`: steps until a head had an induction score of `INDUCES`.
    - `copied_at_end`, `loss`, `in_context`: at the last evaluation.
    """

    copying: float
    induction: float
    copied_at_end: float
    loss: float
    in_context: float

    @classmethod
    def of(cls, curves: Mapping[str, np.ndarray]) -> "Outcome":
        best = curves["induction_head"]
        best = best.reshape(len(best), -1).max(1)
        levels = ((curves["accuracy_copied"], LEARNED), (best, INDUCES))
        times = (emergence(curves["step"], y, level, "above", hold=HOLD) for y, level in levels)
        reached = (t.time if t.state == "reached" else np.nan for t in times)
        ends = (float(curves[name][-1]) for name in ("accuracy_copied", "loss", "in_context"))
        return cls(*reached, *ends)


def steps_to_loss(curves: Mapping[str, np.ndarray], level: float) -> float:
    """Return the step at which validation loss passes a level for good; NaN if it does not."""
    above = np.flatnonzero(curves["loss"] > level)
    after = 0 if not len(above) else above[-1] + 1
    return float(curves["step"][after]) if after < len(curves["step"]) else np.nan


def unique_share(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the share of tokens that were new, as a mean over the steps until each evaluation."""
    step, share = curves["step"].astype(float), curves["new_share"]
    total = np.concatenate([[0.0], np.cumsum(share[:-1] * np.diff(step))])
    return np.divide(total, step, out=np.ones_like(step), where=step > 0)


Curves = Mapping[str, np.ndarray]


def compared_rows(curves_of: Mapping[tuple[int, str], Curves]) -> list[dict[str, Any]]:
    """Return a row per run, compared with the run without repetition of the same seed.

    `steps_saved` is the share of all steps that the run no longer needs to reach the final loss of
    that run, an upper bound of 0 if it never does, which `never as good` says. `saved_halfway` is
    the share of steps that it saves on the way to the loss of that run after half of its steps.
    `excess` is its final loss minus the loss of that run after as many unique tokens.

    **Arguments:**

    - `curves_of`: curves by seed and condition.
    """
    rows = []
    for (seed, label), curves in curves_of.items():
        row = {"task": label, "seed": seed} | dataclasses.asdict(Outcome.of(curves))
        plain = curves_of.get((seed, NONE))
        if plain is not None:
            final = float(plain["loss"][-1])
            unique = float(unique_share(curves)[-1] * curves["step"][-1])
            row["loss_change"] = row["loss"] - final
            reached = steps_to_loss(curves, final)
            row["never as good"] = np.isnan(reached)
            row["steps_saved"] = 0.0 if np.isnan(reached) else 1 - reached / plain["step"][-1]
            middle = np.searchsorted(plain["step"], plain["step"][-1] / 2)
            reached = steps_to_loss(curves, float(plain["loss"][middle]))
            row["saved_halfway"] = 1 - reached / plain["step"][middle]
            row["excess"] = row["loss"] - float(np.interp(unique, plain["step"], plain["loss"]))
        rows.append(row)
    return rows


def curves_of(runs: Runs, label: str) -> dict[tuple[int, str], Curves]:
    """Return the curves of runs by seed and condition; `label` is that of a study of one."""
    table = runs.table
    labels = table["task"] if "task" in table else itertools.repeat(label)
    pairs = zip(runs, map(str, labels), strict=False)
    return {(r.run.seed, name): r.curves for r, name in pairs if r.curves is not None}


def interval(values: pd.Series) -> str:
    """Return the mean of a column and its 95% interval by Student's t."""
    known = values.dropna()
    if len(known) < 2:
        return f"{known.mean():.3g}" if len(known) else "-"
    half = stats.t.ppf(0.975, len(known) - 1) * known.std() / np.sqrt(len(known))
    return f"{known.mean():.3g} [{known.mean() - half:.3g}, {known.mean() + half:.3g}]"


def conditions(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per condition: means with intervals, and the number of censored runs."""
    table = []
    for (corpus, task), group in rows.groupby(["corpus", "task"], sort=False):
        row: dict[str, Any] = {"corpus": corpus, "task": task, "runs": len(group)}
        row["never copied"] = int(group["copying"].isna().sum())
        row["no induction"] = int(group["induction"].isna().sum())
        if "never as good" in group:
            row["never as good"] = int(group["never as good"].sum())
        columns = ("copying", "induction", "copied_at_end", "in_context")
        columns += ("loss_change", "steps_saved", "saved_halfway", "excess")
        row |= {name: interval(group[name]) for name in columns if name in group}
        table.append(row)
    return pd.DataFrame(table)


def law_rows(records: Records) -> pd.DataFrame:
    """Return a row per run of the campaign `law`: tokens until copying emerged."""
    rows = []
    for result in found(law()["cells"], records):
        config: Any = result.run.config
        size = config.batch * config.task.length
        rows.append(
            {
                "batch": config.batch,
                "length": config.task.length,
                "layers": config.model.layers,
                "width": config.model.width,
                "tokens": size * (result.plateau.time or result.steps),
                "censored": result.state == "censored",
                "seed": result.run.seed,
            }
        )
    return pd.DataFrame(rows)


def campaign_rows(name: str, records: Records) -> pd.DataFrame:
    """Return a row per recorded run of a campaign, compared with the run without repetition.

    The studies of `limits` differ in more than repetition, so each is compared within itself.
    """
    groups: dict[str, dict[tuple[int, str], Curves]] = {}
    for label, study in CAMPAIGNS[name]().items():
        group = f"{name}, {label}" if name == "limits" else name
        groups.setdefault(group, {}).update(curves_of(found(study, records), label))
    frames = [pd.DataFrame(compared_rows(curves)).assign(corpus=g) for g, curves in groups.items()]
    return pd.concat(frames)


def report(folder: Path) -> None:
    records = read_records(folder)
    laws = law_rows(records)
    if len(laws):
        cells = laws.groupby(["batch", "length", "layers", "width"], sort=False)
        print(cells.agg(tokens=("tokens", "median"), censored=("censored", "sum")).to_string())
        same = laws[(laws["layers"] == 4) & (laws["width"] == 256)]
        if same.groupby(["batch", "length"]).ngroups >= 3:
            print(em.fit_law(same, "tokens", ["batch", "length"]))
    for name in CAMPAIGNS:
        if name != "law" and len(rows := campaign_rows(name, records)):
            print(f"\n{conditions(rows).to_string(index=False)}")


if __name__ == "__main__":
    if place := os.environ.get("EMERGO_CORPORA"):
        find_data(Path(place))
    if sys.argv[1:2] == ["report"]:
        report(Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER)
    else:
        # A checkpoint would take longer to write than many steps.
        options = {"n_parallel": WAVES.get("".join(sys.argv[2:3]), 12), "checkpoint_seconds": 1e9}
        main(CAMPAIGNS, sys.argv[1:], __doc__ or "", **options)
