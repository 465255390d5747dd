"""Train the runs that answer open questions, the most valuable ones first.

    python -m benchmarks.campaigns list
    python -m benchmarks.campaigns train NAME WORK SECONDS RECORDS [--tiny]
    python -m benchmarks.campaigns summary NAME RECORDS

`train` trains the studies of a campaign one after another until SECONDS are over. Each finished run
is written to the folder WORK at once; the same command goes on from there and from checkpoints.
After each study its finished runs are copied to RECORDS. `--tiny` trains one small cell of each
study for a few steps, to try the command. Most campaigns need a GPU.

results/expectations/campaigns.md says what we expect.
"""

import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import emergo as em
from emergo.papers._recall import PAPER as RECALL
from emergo.papers.experiments import attention, capacity, coupled
from emergo.papers.experiments.capacity import PAPER_SIZES
from emergo.papers.transformers import PAPER, shallow
from emergo.store import Records, Store, StudyFolder, read_records
from emergo.study import Runs
from emergo.study.results import add_records, read_result

from .campaign_parts import FewQueries, ScaledLocation, SharedSigmoid

Studies = Mapping[str, em.Study]
TINY = {"steps": 30, "n_test": 16, "batch": 4, "precision": "fp32", "threshold": None, "seeds": 1}


def capacity_rates() -> Studies:
    """Larger rates at every width, and all rates in a second cell of dim and length."""
    studies = {}
    for width in (1024, 128, 64, 256, 512):
        base = PAPER_SIZES.at(width)
        scaled = PAPER_SIZES.rates(width)["scaled"]
        rates = [scaled * 2**power for power in (5, 6, 7)]
        studies[f"width {width}"] = em.Study.of(base, grid={"learning_rate": rates}, seeds=3)
    for width in (64, 256, 1024):
        base = PAPER_SIZES.at(width).replace(task__length=256, task__dim=16)
        scaled = PAPER_SIZES.rates(width)["scaled"]
        rates = sorted({1e-4, *(scaled * 2**power for power in range(7))})
        name = f"second cell, width {width}"
        studies[name] = em.Study.of(base, grid={"learning_rate": rates}, seeds=3)
    return studies


def capacity_rank() -> Studies:
    """Narrow models trained to step 100,000, and one layer with and without a skip connection."""
    studies = {}
    for width in capacity.PAPER_SIZES.narrow:
        rate = 2 * PAPER_SIZES.rates(width)["scaled"]
        base = PAPER_SIZES.at(width).replace(
            optimizer__learning_rate=rate, threshold=None, steps=100_000
        )
        dims = [dim for dim in PAPER_SIZES.dims if width <= dim <= 2 * width]
        studies[f"width {width}"] = em.Study.of(base, grid={"dim": dims}, seeds=3)
        # Without skip connections two layers have to pass everything through their MLPs.
        single = base.replace(model__layers=1, model__mlp=False)
        axes = {"skip": [True, False], "dim": dims}
        studies[f"width {width}, one layer, no MLP"] = em.Study.of(single, grid=axes, seeds=3)
    return studies


def coupled_circuits() -> Studies:
    """Both circuits and selecting alone with 64 and 128 tokens; other gains; four layers."""
    base = coupled.BASE.replace(optimizer__learning_rate=3e-4)
    parts = {name: coupled.PARTS[name] for name in (coupled.BOTH, coupled.SELECTING)}
    studies = {}
    for vocabulary in (64, 128):
        for pairs in (8, 4, 16):
            config = base.replace(task=em.Recall(pairs, vocabulary), steps=200_000)
            axes = {"interventions": parts}
            studies[f"{pairs} pairs of {vocabulary}"] = em.Study.of(config, grid=axes, seeds=5)
    given = coupled.given(selecting=1.0)
    gains = {
        f"gain {gain:g}": (given[0], given[1].replace(gain=gain), given[2]) for gain in (4.0, 16.0)
    }
    config = base.replace(task=em.Recall(8, 32))
    axes = {"interventions": gains, "pairs": [4, 8, 16]}
    studies["other gains, 32 tokens"] = em.Study.of(config, grid=axes, seeds=3)
    deep = config.replace(model__layers=4, steps=100_000)
    studies["four layers, 8 pairs of 32"] = em.Study.of(
        deep, grid={"interventions": parts}, seeds=5
    )
    return studies


def attention_forms() -> Studies:
    """Sigmoid attention with a sum of 1, windows out of reach, and two more lengths."""
    base = attention.PAPER_BASE
    dims = [16, 32, 64]
    shared = base.replace(model__attention=SharedSigmoid())
    axes = {"length": [32, 128], "dim": dims}
    studies = {"sigmoid with a sum of 1": em.Study.of(shared, grid=axes, seeds=5)}
    # Two layers reach 2 (window - 1) positions back: 62, 126 and all of 256.
    deep = attention.DEEP.replace(task__length=256, threshold=None)
    studies["windows"] = em.Study.of(deep, grid={"window": [32, 64, 160]}, seeds=5)
    for form in ("softmax", "sigmoid", "linear", "norm before", "rotary positions"):
        config = base.replace(**attention.FORMS[form])
        axes = {"length": [64, 256], "dim": dims}
        studies[f"{form}, more lengths"] = em.Study.of(config, grid=axes, seeds=5)
    return studies


def repeated_tokens() -> Studies:
    """1, 4 and 8 tokens repeated across sequences in recall; 2 are on record."""
    parts: dict[str, em.Task] = {f"{n} tokens": FewQueries(32, 256, tokens=n) for n in (1, 4, 8)}
    config = RECALL.replace(task__repeat=0.4)
    parts = {name: task.replace(repeat=0.4) for name, task in parts.items()}
    return {"repeat 0.4": em.Study.of(config, grid={"task": parts}, seeds=3)}


def recall_without_skip() -> Studies:
    """Recall without MLPs, with and without skip connections, by the number of tokens."""
    tasks = {f"16 pairs of {size}": em.Recall(16, size) for size in (64, 128, 256)}
    studies = {}
    for rate in (1e-4, 3e-4):
        base = RECALL.replace(model__mlp=False, optimizer__learning_rate=rate)
        axes = {"task": tasks, "skip": [False, True]}
        studies[f"rate {rate:g}"] = em.Study.of(base, grid=axes, seeds=3)
    return studies


def weak_indicator() -> Studies:
    """A stronger and a weaker indicator, at a fixed and at a random position (B.3)."""
    base = shallow(PAPER).replace(steps=20_000)
    studies = {}
    for position in ("fixed", "random"):
        task = ScaledLocation(32, 32, position=position, indicator=True, special="draw")
        axes = {"marks": [0.25, 1.0, 4.0, 16.0], "length": [32, 128]}
        studies[position] = em.Study.of(base.replace(task=task), grid=axes, seeds=5)
    return studies


def both_repetitions() -> Studies:
    """Repetition within and across sequences at once, in one-layer Transformers."""
    base = shallow(PAPER).replace(steps=20_000, task__length=128, task__dim=32)
    axes = {"burst": [1, 2, 4, 8], "repeat": [0.0, 0.2, 0.4]}
    return {"T = 128, d = 32": em.Study.of(base, grid=axes, seeds=5)}


CAMPAIGNS: Mapping[str, Callable[[], Studies]] = {
    "capacity-rates": capacity_rates,
    "capacity-rank": capacity_rank,
    "coupled": coupled_circuits,
    "attention": attention_forms,
    "repeated-tokens": repeated_tokens,
    "recall-without-skip": recall_without_skip,
    "weak-indicator": weak_indicator,
    "both-repetitions": both_repetitions,
}


def tiny(study: em.Study) -> em.Study:
    """Return one small cell of a study, with few steps."""
    changes: dict[str, Any] = dict(TINY)
    model = study.base.model
    changes |= {"model__width": 32} if hasattr(model, "width") else {}
    changes["grid"] = {name: values[:1] for name, values in study.grid.items() if name != "width"}
    changes["zip"] = {name: values[:1] for name, values in study.zip.items() if name != "steps"}
    return study.replace(**changes)


def train(
    studies: Studies, work: Path, seconds: float, records: Path, name: str, **options: Any
) -> None:
    """Train studies in their order until the time is over, and copy finished runs to records.

    `options` are those of `em.Study.run`.
    """
    deadline = time.monotonic() + seconds
    records.mkdir(parents=True, exist_ok=True)
    for label, study in studies.items():
        folder = StudyFolder(work / name / re.sub(r"[^\w.]+", "-", label))
        left = deadline - time.monotonic()
        if left > 0:
            study.run(folder.path, seconds=left, progress=lambda now: None, **options)
        done = 0
        if folder.exists():
            store = Store(folder.runs)
            add_records(study.runs, store, name, records)
            done = sum(run.identity in store for run in study.runs)
        left = deadline - time.monotonic()
        print(f"{label}: {done} of {study.count} runs, {max(left, 0):.0f} s left", flush=True)


def found(study: em.Study, records: Records) -> Runs:
    """Return the recorded runs of a study, with their curves."""
    results = [read_result(records, run) for run in study.runs if run.identity in records]
    return Runs(results, study.axes, study.values_of)


def summary(studies: Studies, folder: Path) -> None:
    """Print one row per recorded cell."""
    records = read_records(folder)
    for label, study in studies.items():
        runs = found(study, records)
        print(f"\n{label}: {len(runs)} of {study.count} runs")
        if len(runs):
            print(runs)


def main(
    campaigns: Mapping[str, Callable[[], Studies]], words: list[str], usage: str, **options: Any
) -> None:
    """Run the command line of a benchmark with these campaigns; see `train`."""
    words, small = [word for word in words if word != "--tiny"], "--tiny" in words
    command, name = (*words, "", "")[:2]
    if command == "list":
        for label, make in campaigns.items():
            print(f"{label}: {sum(study.count for study in make().values())} runs. {make.__doc__}")
        return
    if name and name not in campaigns:
        sys.exit(f"there is no campaign {name}; choose one of {', '.join(campaigns)}")
    if command == "train" and len(words) == 5:
        studies = campaigns[name]()
        studies = {label: tiny(one) for label, one in studies.items()} if small else studies
        train(studies, Path(words[2]), float(words[3]), Path(words[4]), name, **options)
    elif command == "summary" and len(words) == 3:
        summary(campaigns[name](), Path(words[2]))
    else:
        sys.exit(usage)


if __name__ == "__main__":
    main(CAMPAIGNS, sys.argv[1:], __doc__ or "")
