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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import emergo as em
from emergo.core.errors import InputError
from emergo.measure import emergence, find_stages, fit_law, mean_ratio
from emergo.papers._recall import SMALL as RECALL
from emergo.papers._recall import passed
from emergo.papers._source import curve
from emergo.papers.experiments import coupled
from emergo.papers.experiments.capacity import LAPTOP
from emergo.store import Records, read_records
from emergo.theory import rank_floor
from emergo.training import Result

from .campaign_parts import FewQueries
from .campaigns import Studies, attention_forms, both_repetitions, found, main

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
    axes = {"skip": [True, False], "vocabulary": [8, 16, 32]}
    for rate in (1e-3, 3e-3):
        config = base.replace(optimizer__learning_rate=rate)
        studies[f"skip connections, rate {rate:g}"] = em.Study.of(config, grid=axes, seeds=3)
    without = base.replace(model__mlp=False)
    studies["skip connections, no MLP"] = em.Study.of(without, grid=axes, seeds=3)
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
    """Narrow models for 20,000 steps, and rates up to a factor of 32 in two cells."""
    studies = {}
    for rate, skips in ((3e-3, [True, False]), (1.6e-2, [True])):
        narrow = LAPTOP.at(16).replace(optimizer__learning_rate=rate, threshold=None, steps=20_000)
        axes = {"skip": skips, "dim": [16, 24, 32]}
        studies[f"narrow, rate {rate:g}"] = em.Study.of(narrow, grid=axes, seeds=3)
        if rate == 3e-3:
            single = narrow.replace(model__layers=1, model__mlp=False)
            studies["narrow, one layer, no MLP"] = em.Study.of(single, grid=axes, seeds=3)
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


def loss_below(level: float) -> Callable[[Result], tuple[float, bool]]:
    """Return a function that dates when the test loss of a run falls to a level."""

    def time(result: Result) -> tuple[float, bool]:
        crossing = emergence(curve(result, "step"), curve(result, "loss"), level)
        return crossing.time, crossing.censored

    return time


def half_way(result: Result) -> tuple[float, bool]:
    """Date when accuracy is half way from guessing a value of the context to perfect."""
    task: Any = result.run.config.task
    crossing = passed(result, curve(result, "accuracy"), (1 + 1 / task.pairs) / 2)
    return crossing.time, crossing.censored


def times(
    study: em.Study, records: Records, date: Callable[[Result], tuple[float, bool]]
) -> pd.DataFrame:
    """Return one row per recorded run: its axes, seed, and the step at which it learned.

    Censored runs have their last step.
    """
    rows = []
    for result in found(study, records):
        time, censored = date(result)
        axes = dict(zip(study.axes, study.values_of(result.run), strict=True))
        time = result.steps if censored else max(time, 1.0)
        rows.append(axes | {"seed": result.run.seed, "plateau": time, "censored": censored})
    return pd.DataFrame(rows)


def over(table: pd.DataFrame, axis: str, value: Any, of: Any) -> pd.Series:
    """Return steps at one value of an axis over those at another, by the other axes and seed."""
    others = [name for name in table.columns if name not in (axis, "plateau", "censored")]
    by_cell = table.set_index(others)
    chosen, reference = (by_cell["plateau"][by_cell[axis] == one] for one in (value, of))
    return (chosen / reference).dropna()


def words(ratios: pd.Series) -> str:
    """Return the geometric mean of ratios with its interval, and the range of cells."""
    cells = [index[:-1] for index in ratios.index] if ratios.index.nlevels > 1 else None
    mean = mean_ratio(ratios.to_numpy(), cells)
    text = f"{mean.times:.2f} [{mean.low:.2f}, {mean.high:.2f}] over {mean.units}"
    if cells is not None:
        by_cell = np.exp(ratios.map(np.log).groupby(ratios.index.names[:-1]).mean())
        text += f", {by_cell.min():.2f} to {by_cell.max():.2f} by cell"
    return text


def law(table: pd.DataFrame, x: Sequence[str]) -> str:
    """Return fitted exponents with their intervals, from censored runs too."""
    try:
        fit = fit_law(table, x=list(x)).best
    except InputError as error:
        return str(error)
    ends = ((name, fit.exponents[name], *fit.ci95[name]) for name in x)
    return ", ".join(
        f"{name}^{value:.2f} [{low:.2f}, {high:.2f}]" for name, value, low, high in ends
    )


def cells(table: pd.DataFrame, axes: Sequence[str]) -> Iterator[str]:
    """Yield the geometric mean of every cell, and how many of its runs are censored."""
    for name, rows in table.groupby(list(axes), sort=False):
        label = ", ".join(f"{axis} {value}" for axis, value in zip(axes, name, strict=True))
        mean = np.exp(np.log(rows["plateau"]).mean())
        late = int(rows["censored"].sum())
        yield f"{label}: {mean:,.0f} steps" + (f", {late} of {len(rows)} censored" if late else "")


def repetition_answers(studies: Studies, records: Records) -> Iterator[str]:
    for label, study in studies.items():
        for level in (0.4, 0.1):
            table = times(study, records, loss_below(level))
            if not len(table):
                continue
            yield f"{label}, to a loss of {level}, {int(table['censored'].sum())} censored"
            yield from cells(table, ["burst", "repeat"])
            grid = table.set_index(["burst", "repeat", "seed"])["plateau"].unstack(
                ["burst", "repeat"]
            )
            yield from line_answers(grid)
            for repeat in (0.2, 0.4):
                gain = grid[1.0, 0.0] / grid[1.0, repeat]
                yield f"gain of p = {repeat} at B = 1: {words(gain)}"
                for burst in (2.0, 4.0, 8.0):
                    apart = gain * grid[1.0, 0.0] / grid[burst, 0.0]
                    joint = grid[1.0, 0.0] / grid[burst, repeat]
                    yield (
                        f"p = {repeat}, B = {burst:g}: joint gain {words(joint)}; over the product "
                        f"of both {words(joint / apart)}"
                    )


def line_answers(grid: pd.DataFrame) -> Iterator[str]:
    """Fit steps = constant + slope/B to every seed, by p.

    The fit minimises relative errors. It was chosen after the runs were seen.
    """
    fits = {}
    for repeat in (0.0, 0.2, 0.4):
        rows: Any = grid.xs(repeat, axis=1, level="repeat")
        bursts = rows.columns.to_numpy(float)
        fits[repeat] = np.array([np.polyfit(1 / bursts, y, 1, w=1 / y) for y in rows.to_numpy()])
        off = np.polyval(fits[repeat].mean(0), 1 / bursts) / rows.mean().to_numpy()
        slope, constant = fits[repeat].mean(0)
        yield (
            f"p = {repeat}: {constant:.0f} + {slope:.0f}/B steps, over the means "
            f"{off.min():.2f} to {off.max():.2f}"
        )
    for repeat in (0.2, 0.4):
        ratios = pd.DataFrame(fits[0.0] / fits[repeat], columns=["slope", "constant"])
        ratios = ratios.where(ratios > 0)  # a seed whose loss starts below the level has no line
        yield (
            f"p = {repeat}: slope divided by {words(ratios['slope'])}, "
            f"constant by {words(ratios['constant'])}"
        )


def attention_answers(studies: Studies, records: Records) -> Iterator[str]:
    tables = {}
    for form in (*FORMS, SUM_1):
        table = times(studies[form], records, loss_below(0.1))
        if not len(table):
            continue
        tables[form] = table
        yield f"{form}: {law(table, ['dim', 'length'])}, {int(table['censored'].sum())} censored"
        early = over(table, "length", 16, 8)
        late = over(table, "length", 64, 32)
        rise = mean_ratio((late / early).to_numpy())
        first, last, *ends = np.log2(
            [mean_ratio(early).times, mean_ratio(late).times, rise.low, rise.high]
        )
        yield (
            f"    exponent of T from 8 to 16: {first:.2f}, from 32 to 64: {last:.2f}; "
            f"rise {last - first:.2f} [{ends[0]:.2f}, {ends[1]:.2f}]"
        )
    if "softmax" in tables:
        for form in [form for form in tables if form != "softmax"]:
            index = ["length", "dim", "seed"]
            each, reference = (
                tables[name].set_index(index)["plateau"] for name in (form, "softmax")
            )
            ratios = (each / reference).dropna()
            yield f"{form} over softmax: {words(ratios)}"
            changes = ratios.rename("plateau").reset_index().assign(censored=False)
            yield f"    exponents less those of softmax: {law(changes, ['dim', 'length'])}"
            longest = ratios.xs(64, level="length")
            yield f"    at T = 64: {words(longest)}"
    for result in found(studies["windows"], records):
        task: Any = result.run.config.task
        model: Any = result.run.config.model
        loss = curve(result, "loss")
        step = curve(result, "step")
        hidden = max(1 - (2 * model.window - 1) / task.length, 0)
        plateau = float(np.median(loss[(step >= 50) & (step <= 200)]))
        drops = find_stages(step, loss)
        yield (
            f"window {model.window}, seed {result.run.seed}: {len(drops)} drops at "
            f"{[round(drop.steepest) for drop in drops]}, last loss over the plateau's "
            f"{np.mean(loss[-10:]) / plateau:.3f}, out of reach {hidden:.3f}"
        )


def recall_answers(studies: Studies, records: Records) -> Iterator[str]:
    for label, study in studies.items():
        table = times(study, records, half_way)
        if not len(table):
            continue
        yield label
        yield from cells(table, study.axes)
        if "task" in table:
            for name in table["task"].unique()[1:]:
                yield f"none over {name}: {words(over(table, 'task', 'none', name))}"
        else:
            for skip, rows in table.groupby("skip"):
                yield f"skip {skip}: {law(rows, ['vocabulary'])}"
            ratios = over(table, "skip", False, True)
            changes = ratios.rename("plateau").reset_index().assign(censored=False)
            yield f"without over with: {words(ratios)}; exponent {law(changes, ['vocabulary'])}"


def coupled_answers(studies: Studies, records: Records) -> Iterator[str]:
    for label, study in studies.items():
        table = times(study, records, half_way)
        if not len(table):
            continue
        yield label
        yield from cells(table, study.axes)
        names = list(study.grid["interventions"])
        if "pairs" in table:
            for gain, rows in table.groupby("interventions"):
                yield f"{gain}: {law(rows, ['pairs'])}"
            for gain in ("gain 4", "gain 16"):
                ratios = over(table, "interventions", gain, "gain 8")
                changes = ratios.rename("plateau").reset_index().assign(censored=False)
                yield f"{gain} over gain 8: {words(ratios)}; exponent {law(changes, ['pairs'])}"
        else:
            both, selecting = (str(name) for name in names)
            yield f"both over selecting: {words(over(table, 'interventions', both, selecting))}"


def capacity_answers(studies: Studies, records: Records) -> Iterator[str]:
    studies = dict(studies)
    for label in [label for label in studies if label.startswith("narrow")]:
        study = studies.pop(label)
        yield from narrow_answers(label, study, records)
    yield from rate_answers(studies, records)


def narrow_answers(label: str, study: em.Study, records: Records) -> Iterator[str]:
    """Compare the loss over training, as a share of that at the start, with floors of rank."""
    rows = []
    for result in found(study, records):
        task: Any = result.run.config.task
        model: Any = result.run.config.model
        loss = curve(result, "loss") / 0.5
        step = curve(result, "step")
        at = [
            float(np.median(loss[np.abs(step / step[-1] - share) < 0.03]))
            for share in (0.5, 0.75, 1)
        ]
        floors = [float(rank_floor(share * model.width, task.dim)) for share in (1.0, 0.5)]
        rows.append((model.skip, task.dim, *at, *floors))
    columns = ["skip", "dim", "half", "three quarters", "end", "floor of D", "floor of D/2"]
    if rows:
        frame = pd.DataFrame(rows, columns=columns).groupby(["skip", "dim"])
        yield label
        yield frame.mean().round(3).to_string()
        yield frame["end"].agg(["min", "max"]).round(3).to_string()


def rate_answers(studies: Studies, records: Records) -> Iterator[str]:
    best: dict[str, dict[int, pd.DataFrame]] = {}
    for label, study in studies.items():
        table = times(study, records, loss_below(0.1))
        if not len(table):
            continue
        model: Any = study.base.model
        yield f"{label}: " + "; ".join(cells(table, ["learning_rate"]))
        logs = table["plateau"].map(np.log).groupby(table["learning_rate"]).mean()
        fixed, top = LAPTOP.rates(model.width)["fixed"], logs.idxmin()
        chosen = {"fixed": fixed, "best": top}
        best.setdefault(label.rpartition(",")[0], {})[model.width] = pd.DataFrame(
            {
                name: table[table["learning_rate"] == rate].set_index("seed")["plateau"]
                for name, rate in chosen.items()
            }
        )
    for cell, by_width in best.items():
        low, high = min(by_width), max(by_width)
        ratios = by_width[low] / by_width[high]
        share = 1 - np.log(ratios["best"]) / np.log(ratios["fixed"])
        yield (
            f"{cell}, width {low} over {high}: same rate {words(ratios['fixed'])}, best rates "
            f"{words(ratios['best'])}, share removed by tuning {share.mean():.2f} "
            f"({share.min():.2f} to {share.max():.2f})"
        )


ANSWERS: Mapping[str, Callable[[Studies, Records], Iterable[str]]] = {
    "repetitions": repetition_answers,
    "attention": attention_answers,
    "recall": recall_answers,
    "coupled": coupled_answers,
    "capacity": capacity_answers,
}


def answers(folder: Path) -> None:
    """Print what the recorded runs say about each question."""
    records = read_records(folder)
    for name, make in CAMPAIGNS.items():
        print(f"\n{name}")
        for line in ANSWERS[name](make(), records):
            print(f"  {line}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["answers"]:
        answers(Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER)
    else:
        main(CAMPAIGNS, sys.argv[1:], __doc__ or "")
