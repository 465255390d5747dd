"""The paper presets of the figures that train Markov chains, the most valuable first, until the time is up.

    python benchmarks/chains.py STATE_FOLDER OUT_FOLDER SECONDS [FIGURE ...]

Runs that results/ or STATE_FOLDER hold are not trained again; what is in training when the time is up goes on from there at
the next call. Writes `yuksel2026.runs.parquet` and `yuksel2026.curves.parquet`, which `python benchmarks/merge.py OUT_FOLDER`
puts into those of results/, and `chains.json`.
FIGURE: `fig1 fig4 ... emergo/stages`, to train only those, in this order.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax

from emergo.engine import Progress, Run
from emergo.papers import FIGURES
from emergo.studies import Store, read_records, record_tables, run_all, write_records

CURVES = ("fig1", "fig4", "fig5", "fig3", "fig6", "fig8", "fig13", "fig18", "fig15", "fig11", "fig12")
MAPS = ("fig2", "fig7", "fig9", "fig14", "fig16", "fig17", "fig19")
"""These show the runs of figures of curves, and need none of their own."""
OURS = ("emergo/stages", "emergo/rounding", "emergo/dropout")
ORDER = (*CURVES, *OURS, *MAPS)


def stages(names: tuple[str, ...]) -> dict[str, list[Run]]:
    """The runs of each figure's paper preset."""
    found = {}
    for name in names:
        figure = FIGURES[name if "/" in name else f"yuksel2026/{name}"]
        assert figure.runs is not None
        found[name] = list(figure.runs(figure.presets["paper"]))
    return found


def main(state: Path, out: Path, seconds: float, names: tuple[str, ...]) -> None:
    begun = said = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    records, store = read_records(), Store(state)
    kinds = stages(names)
    timings: dict[str, float] = {}

    def watch(now: Progress) -> None:
        nonlocal said
        if time.monotonic() - said > 20:
            said = time.monotonic()
            steps = sorted(step for _, step, _ in now.running)
            at = f"{len(steps)} runs at {steps[0]}-{steps[-1]}" if steps else "between runs"
            print(f"[{said - begun:.0f} s] {now.done} of {now.total}, {now.rate:.0f} steps/s, {at}", flush=True)
        if time.monotonic() - begun > seconds:
            os.kill(os.getpid(), signal.SIGINT)  # saves what is in training

    try:
        for name, runs in kinds.items():
            todo = [run for run in runs if run not in records and run not in store]
            start = time.monotonic()
            run_all(todo, store, curves=False, checkpoint_seconds=1e9, progress=watch)
            timings[name] = time.monotonic() - start
            print(f"[{time.monotonic() - begun:.0f} s] {name}: {len(todo)} runs in {timings[name]:.0f} s", flush=True)
    except KeyboardInterrupt:
        print("time is up", flush=True)
    everything = {run.identity: run for runs in stages(ORDER).values() for run in runs}
    runs, curves = record_tables([store.read(run) for run in everything.values() if run in store], everything)
    write_records(runs, curves, out, "yuksel2026")
    summary: dict[str, Any] = {
        name: {"runs": len(runs), "done": sum(run in store or run in records for run in runs)} for name, runs in kinds.items()
    }
    summary |= {"seconds of whole stages": timings, "seconds": time.monotonic() - begun}
    summary["device"] = jax.devices()[0].device_kind
    (out / "chains.json").write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary, indent=1), flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 4 or "--help" in sys.argv:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), tuple(sys.argv[4:]) or ORDER)
