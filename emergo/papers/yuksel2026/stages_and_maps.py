"""Figures 1 to 3, 6 to 9 and 11 to 19: the stages of one setting each, and maps of where its heads look."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..._style import WIDTH
from ...engine import Optimizer
from ...measure import head_similarity
from ...models import ChainTransformer, MinimalAttention
from ...studies import Study
from ...tasks import Groups, MarkovChain
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource, Seconds, Studies
from ._chains import ADAMW, FULL, NOTHING, PAIR, ChainRuns, Printed, ladder_checks, laptop, paper, passing_check, smoke
from ._contexts import ContextPredictors
from ._map_figure import map_figure
from ._stage_figure import draw_heads, draw_references, stage_figure

MINIMAL, TRANSFORMER = MinimalAttention(), ChainTransformer(dropout_every=3, start="xavier")
WIDE, UNEQUAL = Groups((4, 4, 4)), Groups(weights=((0.7, 0.3),) * 3)

FIG1 = stage_figure(
    1,
    "the minimal attention learns a Markov chain in three stages: heads compete for one group, then divide them",
    presets={"paper": (paper(MINIMAL), 7200), "laptop": (laptop(MINIMAL), 33), "smoke": (smoke(), 8)},
    printed=Printed((330, 575), final_kl=(2.78, 0.70, 0.09), plateau_levels=(0.87, 0.34)),
)


PROBE = ContextPredictors((4, 8, 12))
FULL_SIZE, TINY_TRANSFORMER = paper(TRANSFORMER, MarkovChain(WIDE), FULL), ChainTransformer(heads=2, width=8, hidden=8)
SMALL = laptop(ChainTransformer(width=96, hidden=32, dropout=0.0), WIDE, FULL.replace(learning_rate=2e-3), seeds=1)
SMALL = SMALL.replace(batch=64, steps=2000, n_test=256)


def first_compared(study: Study) -> dict[str, Study]:
    """A study of which only the first run is compared with the predictors of restricted context, which take longer to train."""
    first, *others = study.seeds
    return {"compared": study.replace(seeds=[first], probes=(PROBE,)), "others": study.replace(seeds=others)}


def context_checks(runs: ChainRuns) -> list[Check]:
    """The student passes the predictors of restricted context one after another."""
    compared = [run for run in runs if "kl_contexts" in run.curves]
    if not compared:
        return []
    final = np.mean([run["kl_contexts"][-1] for run in compared], 0)
    name = "steps at which the student is nearest to predictors of short, ... and whole context, geometric mean over runs"
    words = "each stage corresponds to the acquisition of information from a subset of positions"
    passed = passing_check(compared, "kl_contexts", name, words)
    name = "KL from these predictors at the end, mean over these runs"
    return [passed, Check(name, final, None, np.all(np.diff(final) < 0), "less for longer context")]


FIG3 = stage_figure(
    3,
    "the full Transformer learns the chain in stages, also seen from predictors of restricted context",
    presets={
        "paper": (first_compared(FULL_SIZE), 40_000),
        "laptop": (SMALL.replace(probes=(PROBE,)), 102),
        "smoke": (smoke(seeds=1, probes=(ContextPredictors((1, 2)),)), 15),
    },
    printed=Printed((65, 450), final_kl=(3.05, 0.78, 0.19), plateau_levels=(0.45,)),
    more=context_checks,
)


def current_token_check(runs: ChainRuns) -> list[Check]:
    """Attention to the current token over that to the other lags, heads summed, mean over seeds."""
    sums = [run.attention[-1].sum(0) for run in runs]
    ratio = np.mean([lags[0] / lags[1:].mean() for lags in sums])
    words = "the main diagonal does not have the same intensity as the other positions: it is learned via the skip connection"
    return [Check("at the end, attention to lag 0 over that to the other lags, mean over seeds", ratio, words, ratio < 0.8)]


FIG2 = map_figure(2, "where the heads of the full Transformer look at different stages of training", FIG3, current_token_check)


def overfitting_check(runs: ChainRuns) -> list[Check]:
    worst = max(run["kl_teacher"][-1] - run["kl_teacher"].min() for run in runs)
    name = "KL from the teacher at the end over its least, largest over seeds"
    return [Check(name, worst, None, worst < 0.02, "below 0.02: nothing is learned by heart")]


FIG6 = stage_figure(
    6,
    "the minimal attention on fresh data in every step: the same stages, without overfitting",
    presets={"paper": (paper(MINIMAL, n_train=None), 7200), "laptop": (laptop(MINIMAL), 80), "smoke": (smoke(), 8)},
    printed=Printed((330, 580)),
    more=overfitting_check,
)
FIG7 = map_figure(7, "where the heads of Fig. 6 look: all at the strongest group first, then each at one of its own", FIG6)


def far_first_check(runs: ChainRuns) -> list[Check]:
    """The group that some head has half of its attention on before any other."""
    first = [next(iter(run.learning_order), None) for run in runs]
    name = "the group that a head first has half of its attention on, counted from the nearest, by seed"
    return [Check(name, first, "the far group is learned first", all(group == runs.groups.count for group in first))]


FIG8 = stage_figure(
    8,
    "with the far group strongest, the far group is learned first",
    presets={
        "paper": (paper(TRANSFORMER, MarkovChain(Groups((2, 4, 8), strongest="far")), FULL), 25_000),
        "laptop": (laptop(MINIMAL, Groups(strongest="far")), 30),
        "smoke": (smoke(groups=PAIR.replace(strongest="far")), 8),
    },
    printed=Printed((90, 410)),
)
FIG9 = map_figure(9, "where the heads of Fig. 8 look: at the far group first, which is strongest", FIG8, far_first_check)


SLOW, DEEP = ADAMW.replace(learning_rate=0.04), MinimalAttention(layers=2, start="xavier")
FIG11 = stage_figure(
    11,
    "two layers of the minimal attention learn the chain in the same stages",
    presets={
        "paper": (paper(DEEP, MarkovChain(Groups((4, 4, 4), 1.8)), SLOW, n_train=27_000), 40_000),
        "laptop": (laptop(DEEP, optimizer=SLOW, batch=128), 54),
        "smoke": (smoke(DEEP.replace(heads=2), optimizer=SLOW), 10),
    },
    printed=Printed((180, 370)),
    one_layer=False,
)
FIG12 = stage_figure(
    12,
    "two layers of the full Transformer learn the chain in the same stages",
    presets={
        "paper": (FULL_SIZE.replace(model__layers=2, optimizer__learning_rate=1e-3), 45_000),
        "laptop": (SMALL.replace(model__layers=2, model__width=48, steps=2500), 54),
        "smoke": (smoke(TINY_TRANSFORMER.replace(layers=2, dropout=0.0), optimizer=FULL.replace(learning_rate=3e-2)), 15),
    },
    printed=Printed((70, 200)),
    one_layer=False,
)


def weight_check(runs: ChainRuns) -> list[Check]:
    """The share that the nearer position of each group has in the attention of the head that looks at the group most."""
    starts, mixing = runs.groups.starts, runs.groups.mixing
    weights, shares = [float(m[s] / m[s : s + 2].sum()) for m, s in zip(mixing, starts, strict=True)], []
    for run in runs:
        owned = [run.attention[-1, head, s : s + 2] for head, s in zip(run.group_attention[-1].argmax(0), starts, strict=True)]
        shares.append([near / (near + far) for near, far in owned])
    means = np.mean(shares, 0)
    name = "share of the nearer position in the attention on each group, mean over seeds"
    return [Check(name, means, f"attention follows the weights: {weights}", np.all(np.abs(means - weights) < 0.1))]


FIG13 = stage_figure(
    13,
    "with unequal weights within a group, attention follows them",
    presets={
        "paper": (paper(MinimalAttention(start="xavier"), MarkovChain(UNEQUAL)), 7200),
        "laptop": (laptop(MINIMAL, UNEQUAL), 39),
        "smoke": (smoke(groups=Groups((2, 2), weights=((0.7, 0.3),) * 2)), 8),
    },
    printed=Printed((130, 280)),
    more=weight_check,
)
FIG14 = map_figure(14, "where the heads of Fig. 13 look: more at the position of a group that weighs more", FIG13, weight_check)


OVERLAP = Groups((4, 4, 4), stride=2)
PRINTED = {"4 heads": Printed((150, 700))}


def sharing_check(runs: ChainRuns) -> list[Check]:
    """How much the head that looks second most at a group looks at it, over the one that does most; and how alike heads are."""
    sorted_heads = [np.sort(run.group_attention[-1], 0)[::-1] for run in runs]
    second = np.mean([mass[1] / mass[0] for mass in sorted_heads])
    alike = np.mean([head_similarity(run.attention[-1]) for run in runs])
    name = "at the end, second most over most attention of heads on a group, and similarity of heads, mean over seeds"
    return [Check(name, [second, alike], "patterns are shared between heads", second > 0.4 and alike < 0.7)]


def make_overlapping(studies: Studies, source: RunSource) -> Outcome:
    by_heads = {name: ChainRuns(part) for name, part in source.runs(studies, curves=True).items()}
    checks = []
    for name, runs in by_heads.items():
        own = [*ladder_checks(runs, PRINTED.get(name, NOTHING)), *sharing_check(runs)]
        checks += [dataclasses.replace(check, name=f"{name}: {check.name}") for check in own]
    tables = {name.replace(" ", "_"): runs.table for name, runs in by_heads.items()}
    return Outcome(tables, draw_overlapping(by_heads), checks=checks)


def draw_overlapping(by_heads: Mapping[str, ChainRuns]) -> Plot:
    counts = [runs[0].attention.shape[1] for runs in by_heads.values()]
    height = 0.42 * max(counts)
    plot = Plot(figsize=(WIDTH, 3.0 + height), layout="constrained")
    columns: Any = np.ravel(plot.subfigures(1, len(by_heads), squeeze=False))
    for i, (column, heads, (name, runs)) in enumerate(zip(columns, counts, by_heads.items(), strict=True)):
        above, below = column.subfigures(2, 1, height_ratios=(2.4, 0.4 + height))
        draw_references(above.subplots(), runs, "ab"[i], f"{name}: ")
        panels, names = below.subplots(heads, 1, sharex=True, squeeze=False)[:, 0], {k: f"{k + 1}" for k in range(heads)}
        draw_heads(panels, runs[0], names, "cd"[i], "attention of each head on each group")
    return plot


def by_number_of_heads(study: Study, *numbers: int) -> dict[str, Study]:
    return {f"{heads} heads": study.replace(model__heads=heads) for heads in numbers}


TITLE_15 = "groups that overlap, learned by three and by four heads: what groups share, heads share"
PRESETS_15: Presets = {
    "paper": by_number_of_heads(paper(MinimalAttention(start="xavier"), MarkovChain(OVERLAP)), 3, 4),
    "laptop": by_number_of_heads(laptop(MinimalAttention(), OVERLAP, seeds=1, steps=2000), 3, 4),
    "smoke": by_number_of_heads(smoke(groups=Groups((2, 2), stride=1)), 2, 3),
}
SECONDS_15: Seconds = {"paper": 20000, "laptop": 62, "smoke": 12}
FIG15 = Figure("yuksel2026/fig15", TITLE_15, PRESETS_15, make_overlapping, SECONDS_15, curves=True)
FIG16 = map_figure(16, "where three heads look when groups overlap", FIG15, sharing_check, which=0, own_heads=False)
FIG17 = map_figure(17, "where four heads look when three groups overlap", FIG15, sharing_check, which=1, own_heads=False)


SGD = Optimizer("sgd", 0.2, clip=1.0, momentum=0.9)
FAST, SHORT = SGD.replace(learning_rate=4.0), {"steps": 6000, "seeds": 1, "batch": 128}
FIG18 = stage_figure(
    18,
    "SGD learns the chain in the same stages, slower",
    presets={
        "paper": (paper(TRANSFORMER, MarkovChain(Groups((4, 4, 4), 2.0)), SGD, steps=7000), 75_000),
        "laptop": (laptop(MinimalAttention(scale=1e-4), Groups(importance=2.0), FAST, **SHORT), 46),
        "smoke": (smoke(optimizer=SGD), 8),
    },
    printed=Printed((600, 4000)),
)
FIG19 = map_figure(19, "where the heads of Fig. 18, trained with SGD, look", FIG18)

FIGURES = (FIG1, FIG2, FIG3, FIG6, FIG7, FIG8, FIG9, FIG11, FIG12, FIG13, FIG14, FIG15, FIG16, FIG17, FIG18, FIG19)
