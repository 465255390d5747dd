"""Figures 1 to 3, 6 to 9 and 11 to 19: the stages of one setting each, and attention maps."""

import numpy as np

from ...measure import head_similarity
from ...models import ChainTransformer, MinimalAttention
from ...study import Study
from ...tasks import Groups, MarkovChain
from ...training import Optimizer
from .._figure import Check
from ._chains import (
    ADAMW,
    FULL,
    PAIR,
    ChainRuns,
    Printed,
    laptop,
    on_published_teacher,
    paper,
    smoke,
)
from ._contexts import ContextPredictors
from ._maps import AttentionMaps
from ._stage_figure import map_figure, stage_figure

MINIMAL = MinimalAttention()
PLACES = ("embedding", "attention", "added")
TRANSFORMER = ChainTransformer(dropout_every=3, start="xavier", dropout_at=PLACES)
"""As in the public code."""
WIDE = Groups((4, 4, 4))
UNEQUAL = Groups(weights=((0.7, 0.3),) * 3)

FIG1 = stage_figure(
    1,
    "the minimal attention learns a Markov chain in three stages: heads compete for one group, "
    "then divide them",
    presets={
        "paper": (on_published_teacher(paper(MINIMAL)), 11_500),
        "laptop": (laptop(MINIMAL), 33),
        "smoke": (smoke(), 8),
    },
    printed=Printed(
        (330, 575), (0.87, 0.34), teacher_loss=0.51, step=1100, kl_references=(2.78, 0.70, 0.09)
    ),
    task=True,
)


# Three seeds, because a step takes eight times as long as a step of the minimal attention.
FULL_SIZE = paper(TRANSFORMER, MarkovChain(WIDE), FULL, seeds=3)
TINY_TRANSFORMER = ChainTransformer(heads=2, width=8, hidden=8)
SMALL = laptop(
    ChainTransformer(width=96, hidden=32, dropout=0.0),
    WIDE,
    FULL.replace(learning_rate=2e-3),
    seeds=1,
)
SMALL = SMALL.replace(batch=64, steps=2000, n_test=256)


def predictors(*contexts: int) -> ContextPredictors:
    """Return predictors trained on the run's own sequences, as in the paper."""
    return ContextPredictors(contexts, fresh=False)


FIG3 = stage_figure(
    3,
    "the full Transformer learns the chain in stages, also seen from predictors of restricted "
    "context",
    presets={
        "paper": (
            on_published_teacher(
                FULL_SIZE, first=(predictors(4, 8, 12), AttentionMaps((0, 60, 300, 1000)))
            ),
            100_000,
        ),
        "laptop": (
            SMALL.replace(
                probes=(ContextPredictors((4, 8, 12)), AttentionMaps((0, 60, 300, 2000)))
            ),
            102,
        ),
        "smoke": (smoke(seeds=1, probes=(ContextPredictors((1, 2)), AttentionMaps((0, 30)))), 15),
    },
    printed=Printed(
        (65, 450),
        (0.45,),
        teacher_loss=0.30,
        step=1000,
        kl_references=(3.05, 0.78, 0.19),
        least_references=(1.46, 60),
        kl_contexts=(1.78, 0.72, 0.16),
        least_contexts=(0.36, 60),
    ),
)


def current_token_check(runs: ChainRuns) -> list[Check]:
    """Check the attention to the current token relative to the other lags."""
    sums = [run.attention[-1].sum(0) for run in runs]
    ratio = np.mean([lags[0] / lags[1:].mean() for lags in sums])
    words = (
        "the main diagonal does not have the same intensity as the other positions: it is "
        "learned via the skip connection"
    )
    return [
        Check(
            "at the end, attention to lag 0 over that to the other lags, mean over seeds",
            ratio,
            words,
            ratio < 0.8,
        )
    ]


FIG2 = map_figure(
    2,
    "where the heads of the full Transformer look at different stages of training",
    FIG3,
    current_token_check,
    steps=(60, 300, 1000),
)


def overfitting_check(runs: ChainRuns) -> list[Check]:
    worst = max(run["kl_teacher"][-1] - run["kl_teacher"].min() for run in runs)
    name = "KL from the teacher at the end over its least, largest over seeds"
    return [Check(name, worst, None, worst < 0.02, "below 0.02: nothing is learned by heart")]


ONLINE = paper(MINIMAL, n_train=None, probes=(AttentionMaps((0, 270, 580, 1500)),))
FIG6 = stage_figure(
    6,
    "the minimal attention on fresh data in every step: the same stages, without overfitting",
    presets={
        "paper": (on_published_teacher(ONLINE), 11_500),
        "laptop": (laptop(MINIMAL), 80),
        "smoke": (smoke(), 8),
    },
    printed=Printed((330, 580), step=2000, kl_references=(2.60, 0.61, 0.02)),
    more=overfitting_check,
)
FIG7 = map_figure(
    7,
    "where the heads of Fig. 6 look: all at the strongest group first, then each at one of its own",
    FIG6,
    steps=(270, 580, 1500),
)


def far_first_check(runs: ChainRuns) -> list[Check]:
    """Check which group first receives half of a head's attention."""
    first = [next(iter(run.learning_order), None) for run in runs]
    name = (
        "the group that a head first has half of its attention on, counted from the nearest, "
        "by seed"
    )
    return [
        Check(
            name,
            first,
            "the far group is learned first",
            all(group == runs.groups.count for group in first),
        )
    ]


FAR, SMALL_FAR = (Groups(spans, 2.5, strongest="far") for spans in ((8, 4, 2), (4, 2, 1)))
REVERSED = paper(
    TRANSFORMER, MarkovChain(FAR), FULL, seeds=3, probes=(AttentionMaps((0, 70, 375, 1500)),)
)
FIG9 = stage_figure(
    9,
    "with the far group strongest, the far group is learned first",
    presets={
        "paper": (on_published_teacher(REVERSED), 100_000),
        "laptop": (laptop(MINIMAL, SMALL_FAR), 30),
        "smoke": (smoke(groups=PAIR.replace(strongest="far")), 8),
    },
    printed=Printed(
        (90, 410),
        (1.6, 0.72),
        teacher_loss=0.25,
        step=1000,
        kl_references=(2.92, 1.04, 0.27),
        least_references=(1.16, 75),
    ),
)
FIG8 = map_figure(
    8,
    "where the heads of Fig. 9 look: at the far group first, which is strongest",
    FIG9,
    far_first_check,
    steps=(70, 375, 1500),
)


SLOW = ADAMW.replace(learning_rate=0.04)
DEEP = MinimalAttention(layers=2, start="xavier")
FIG11 = stage_figure(
    11,
    "two layers of the minimal attention learn the chain in the same stages",
    presets={
        "paper": (
            on_published_teacher(
                paper(DEEP, MarkovChain(Groups((4, 4, 4), 1.8)), SLOW, n_train=27_000)
            ),
            64_000,
        ),
        "laptop": (laptop(DEEP, optimizer=SLOW, batch=128), 54),
        "smoke": (smoke(DEEP.replace(heads=2), optimizer=SLOW), 10),
    },
    printed=Printed(
        (180, 370), step=1000, kl_references=(4.6, 0.92, 0.07), least_references=(1.46, 140)
    ),
    own_heads=False,
)
FIG12 = stage_figure(
    12,
    "two layers of the full Transformer learn the chain in the same stages",
    presets={
        "paper": (
            on_published_teacher(FULL_SIZE.replace(model__layers=2, optimizer__learning_rate=1e-3)),
            180_000,
        ),
        "laptop": (SMALL.replace(model__layers=2, model__width=48, steps=2500), 54),
        "smoke": (
            smoke(
                TINY_TRANSFORMER.replace(layers=2, dropout=0.0),
                optimizer=FULL.replace(learning_rate=3e-2),
            ),
            15,
        ),
    },
    printed=Printed(
        (70, 200), step=1000, kl_references=(3.38, 0.81, 0.15), least_references=(1.56, 70)
    ),
    own_heads=False,
)


def weight_check(runs: ChainRuns) -> list[Check]:
    """Check the share of the nearer position in the attention on each group.

    The head that attends to a group most is measured.
    """
    starts = np.array(runs.groups.starts)
    groups = np.arange(runs.groups.count)

    def shares(lags: np.ndarray) -> np.ndarray:
        near = lags[groups, starts]
        return near / (near + lags[groups, starts + 1])

    weights = shares(runs.groups.mixing).tolist()
    means = runs.mean(lambda run: shares(run.attention[-1, run.group_attention[-1].argmax(0)]))
    return [
        Check(
            "share of the nearer position in the attention on each group, mean over seeds",
            means,
            f"attention follows the weights: {weights}",
            np.all(np.abs(means - weights) < 0.1),
        )
    ]


XAVIER = MinimalAttention(start="xavier")
UNEQUAL_PROBES = (predictors(2, 4, 6), AttentionMaps((0, 100, 200, 1000)))
FIG13 = stage_figure(
    13,
    "with unequal weights within a group, attention follows them",
    presets={
        "paper": (
            on_published_teacher(paper(XAVIER, MarkovChain(UNEQUAL)), first=UNEQUAL_PROBES),
            16_000,
        ),
        "laptop": (laptop(MINIMAL, UNEQUAL), 39),
        "smoke": (smoke(groups=Groups((2, 2), weights=((0.7, 0.3),) * 2)), 8),
    },
    printed=Printed(
        (130, 280), step=1000, kl_contexts=(1.40, 0.38, 0.10), least_contexts=(0.54, 110)
    ),
    more=weight_check,
)
FIG14 = map_figure(
    14,
    "where the heads of Fig. 13 look: more at the position of a group that weighs more",
    FIG13,
    weight_check,
    steps=(100, 200, 1000),
)


OVERLAP = Groups((4, 4, 4), stride=2)


def sharing_check(runs: ChainRuns) -> list[Check]:
    """Check how much the second head attends to a group, and how similar heads are."""
    sorted_heads = [np.sort(run.group_attention[-1], 0)[::-1] for run in runs]
    second = np.mean([mass[1] / mass[0] for mass in sorted_heads])
    alike = np.mean([head_similarity(run.attention[-1]) for run in runs])
    name = (
        "at the end, second most over most attention of heads on a group, and similarity of "
        "heads, mean over seeds"
    )
    return [
        Check(
            name, [second, alike], "patterns are shared between heads", second > 0.4 and alike < 0.7
        )
    ]


def by_number_of_heads(study: Study, *numbers: int) -> dict[str, Study]:
    return {f"{heads} heads": study.replace(model__heads=heads) for heads in numbers}


OVERLAPPING = paper(XAVIER, MarkovChain(OVERLAP))
OVERLAP_MAPS = AttentionMaps((100, 400, 1900))
FIG15 = stage_figure(
    15,
    "groups that overlap, learned by three and by four heads: what groups share, heads share",
    presets={
        "paper": (
            # The published predictors of restricted context belong to four heads.
            on_published_teacher(by_number_of_heads(OVERLAPPING, 3), first=(OVERLAP_MAPS,))
            | on_published_teacher(
                by_number_of_heads(OVERLAPPING, 4), first=(predictors(4, 6, 8), OVERLAP_MAPS)
            ),
            36_000,
        ),
        "laptop": (by_number_of_heads(laptop(MINIMAL, OVERLAP, seeds=1, steps=2000), 3, 4), 62),
        "smoke": (by_number_of_heads(smoke(groups=Groups((2, 2), stride=1)), 2, 3), 12),
    },
    printed=Printed(
        (150, 700),
        step=1950,
        kl_contexts=(1.52, 0.41, 0.15),
        least_contexts=(0.37, 130),
        part="4 heads",
    ),
    more=sharing_check,
    own_heads=False,
)
FIG16 = map_figure(
    16, "where three heads look when groups overlap", FIG15, sharing_check, own_heads=False
)
FIG17 = map_figure(
    17,
    "where four heads look when three groups overlap",
    FIG15,
    sharing_check,
    which=1,
    own_heads=False,
)


SGD = Optimizer("sgd", 0.2, clip=1.0, momentum=0.9)
BY_SGD = FULL_SIZE.replace(optimizer=SGD, task__groups__importance=2.0, steps=7000)
FAST = SGD.replace(learning_rate=4.0)
SHORT = {"steps": 6000, "seeds": 1, "batch": 128}
FIG18 = stage_figure(
    18,
    "SGD learns the chain in the same stages, slower",
    presets={
        "paper": (
            on_published_teacher(
                BY_SGD, first=(predictors(4, 8, 12), AttentionMaps((0, 600, 3800, 6600)))
            ),
            480_000,
        ),
        "laptop": (laptop(MinimalAttention(scale=1e-4), Groups(importance=2.0), FAST, **SHORT), 46),
        "smoke": (smoke(optimizer=SGD), 8),
    },
    printed=Printed(
        (600, 4000), step=7000, kl_contexts=(1.58, 0.39, 0.18), least_contexts=(0.43, 610)
    ),
)
FIG19 = map_figure(
    19, "where the heads of Fig. 18, trained with SGD, look", FIG18, steps=(600, 3800, 6600)
)
