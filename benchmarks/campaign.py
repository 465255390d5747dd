"""The paper presets of figures that train, the most valuable first, until the time is up.

    python benchmarks/campaign.py regression|recall|fig3 STATE_FOLDER OUT_FOLDER SECONDS [WORD ...]

Runs that results/ or STATE_FOLDER hold are not trained again; what is in training when the time is up goes on from there at
the next call. `fig3` trains Figure 3 left and middle whether results/ hold them or not, for the time that they take. WORD: only
the stages in whose names one of these is (two processes can share a GPU, each with an OUT_FOLDER of its own). Writes
`zucchet2025.runs.parquet` and `zucchet2025.curves.parquet` (`zucchet2025-recall...`), which `python benchmarks/merge.py
OUT_FOLDER` puts into those of results/, and `campaign.json`.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from emergo.engine import Progress, Run
from emergo.papers._recall import CRITERIA
from emergo.papers.own import precision, reading
from emergo.papers.zucchet2025 import fig3, fig4, fig5, fig11, fig12, fig13, fig14, fig15, fig17
from emergo.studies import Records, Result, Store, read_records, record_tables, run_all, write_records

Ask = Callable[[list[Run]], list[Result]]
Stages = dict[str, Callable[[Ask], list[Run]]]
"""Named lists of runs, in the order of their value for their cost; one may depend on the results of earlier ones."""


PROBES = ("entropy", "previous", "induction")
"""Of recall, over half of the numbers; of Fig. 17's runs they are kept."""


def paper(figure: Any) -> list[Run]:
    return list(figure.runs(figure.FIGURE.presets["paper"]))


def regression() -> Stages:
    three, fifteen = fig3.FIGURE.presets["paper"].parts(), fig15.FIGURE.presets["paper"].parts()
    main = three["left"] + three["middle"] + paper(fig11)
    return {
        "fig3 left and middle, fig11": lambda _: [run for run in main if run.config.task.length <= 256],
        "fig14, fig15 Adam": lambda _: paper(fig14) + fifteen["adam"],
        "fig13": lambda _: paper(fig13),
        "precision": lambda _: paper(precision),
        "fig3 right": lambda _: three["right"],
        "fig3 left, length 512": lambda _: [run for run in main if run.config.task.length > 256],
        "fig12": lambda _: paper(fig12),
        "fig15 SGD": lambda _: fifteen["sgd"],
    }


def recall() -> Stages:
    """A stack of few runs takes as long as one of ten: what can share a program is trained together, so that seeds of Fig. 4 go
    at the first learning rate before it is known that they are wanted. What cannot has a stage of its own, for processes that
    share the GPU. With more pairs than rates are tried with, the rate is that of fewer: the last stage trains what it needs of
    these, unless results/ or its STATE_FOLDER have it."""
    four, five = fig4.FIGURE.presets["paper"], fig5.FIGURE.presets["paper"].parts()
    readings = reading.FIGURE.presets["paper"].parts()
    most_tried = four.tried or max(four.pairs)

    def seeds(pairs: int) -> list[Run]:
        return [run for task in four.tasks() if task.pairs == pairs for run in four.runs(task, four.rates[0])]

    def whole(results: Ask, pairs: int) -> list[Run]:
        tried = results([run for run in paper(fig4) if run.config.task.pairs == min(pairs, most_tried)])
        while following := fig4.next_rates(four, tried):
            tried += results(following)
        shown = {run.identity: run for by in CRITERIA for run in fig4.shown_runs(four, tried, by)}
        return [run for run in shown.values() if run.config.task.pairs == pairs]

    alone = ("norm before", "norm after", "no mask")
    return {
        "reading: starts": lambda _: [run for name, runs in readings.items() if name not in alone for run in runs],
        **{f"reading: {name}": lambda _, name=name: readings[name] for name in alone},
        **{f"fig4, {pairs} pairs": lambda _, pairs=pairs: seeds(pairs) for pairs in four.pairs},
        "fig5 in context": lambda _: [run for run in five["in_context"] if run.config.task.burst > 1],
        "fig5 across samples, fig17": lambda _: [*paper(fig17), *five["across_samples"]],
        **{f"fig4, {pairs} pairs, the rest": lambda results, pairs=pairs: whole(results, pairs) for pairs in four.pairs},
    }


def fig3_anew() -> Stages:
    three = fig3.FIGURE.presets["paper"].parts()
    runs = three["left"] + three["middle"]
    lengths = sorted({run.config.task.length for run in runs}, reverse=True)
    return {f"length {t}": lambda _, t=t: [run for run in runs if run.config.task.length == t] for t in lengths}


def main(kind: str, state: Path, out: Path, seconds: float, words: Sequence[str] = ()) -> None:
    begun = said = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    records, store = Records(pd.DataFrame()) if kind == "fig3" else read_records(), Store(state)

    def watch(now: Progress) -> None:
        nonlocal said
        if time.monotonic() - said > 20:
            said = time.monotonic()
            now_at = sorted({(r.config.model.layers, r.config.model.heads, r.config.task.length) for r, _, _ in now.running})
            steps = sorted(step for _, step, _ in now.running)
            print(
                f"[{said - begun:.0f} s] {now.done} of {now.total}, {now.rate:.0f} steps/s, {now.bytes / 1e9:.0f} GB, "
                f"{now_at} x {len(steps)} at {steps[:1]}-{steps[-1:]}",
                flush=True,
            )
        if time.monotonic() - begun > seconds:
            os.kill(os.getpid(), signal.SIGINT)  # saves what is in training

    def results(runs: list[Run]) -> list[Result]:
        asked.update((run.identity, run) for run in runs)
        return run_all(runs, store, records=records, curves=kind == "recall", checkpoint_seconds=1e9, progress=watch)

    timings: dict[str, float] = {}
    wanted: dict[str, list[Run]] = {}
    asked: dict[str, Run] = {}
    try:
        for name, runs in {"regression": regression, "recall": recall, "fig3": fig3_anew}[kind]().items():
            if words and not any(word in name for word in words):
                continue
            start = time.monotonic()
            wanted[name] = runs(results)
            results(wanted[name])
            timings[name] = time.monotonic() - start
            print(f"[{time.monotonic() - begun:.0f} s] {name}: {len(wanted[name])} runs in {timings[name]:.0f} s", flush=True)
    except KeyboardInterrupt:
        print("time is up", flush=True)
    write(kind, wanted, asked, records, store, out, timings, time.monotonic() - begun)


def write(
    kind: str,
    wanted: dict[str, list[Run]],
    asked: dict[str, Run],
    records: Records,
    store: Store,
    out: Path,
    timings: dict[str, float],
    seconds: float,
) -> None:
    """What was trained and is not among the records; curves of those figures that show them."""
    everything = {identity: run for identity, run in asked.items() if run not in records and run in store}
    shown = {run.identity for figure in (fig11, fig12) for run in paper(figure)} if kind != "recall" else set(everything)
    results = [store.read(run, curves=run.identity in shown) for run in everything.values()]
    if kind == "recall":
        results = [slim(result) for result in results]
    runs, curves = record_tables(results, shown)
    write_records(runs, curves, out, "zucchet2025-recall" if kind == "recall" else "zucchet2025")
    summary: dict[str, Any] = {
        name: {"runs": len(runs), "there": sum(run in records or run in store for run in runs)} for name, runs in wanted.items()
    }
    summary["seconds of whole stages"] = timings
    summary["seconds"] = seconds
    summary["device"] = jax.devices()[0].device_kind
    (out / "campaign.json").write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary, indent=1), flush=True)


def slim(result: Result) -> Result:
    """The result without what no figure shows of it."""
    if result.curves is None or result.run in paper(fig17):
        return result
    return result._replace(curves={name: curve for name, curve in result.curves.items() if name not in PROBES})


if __name__ == "__main__":
    if len(sys.argv) < 5 or "--help" in sys.argv:
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]), sys.argv[5:])
