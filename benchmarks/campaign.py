"""The paper presets of the figures that train Transformers, the most valuable first, until the time is up.

    python benchmarks/campaign.py STATE_FOLDER OUT_FOLDER SECONDS

Runs that results/ or STATE_FOLDER hold are not trained again; what is in training when the time is up goes on from there at
the next call. Writes `zucchet2025.runs.parquet`, `zucchet2025.curves.parquet` (copy both to results/) and `campaign.json`.
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
from emergo.papers.own import precision
from emergo.papers.zucchet2025 import fig3, fig11, fig12, fig13, fig14, fig15
from emergo.studies import Store, read_records, record_tables, run_all


def stages() -> dict[str, list[Run]]:
    """Named lists of runs, in the order of their value for their cost."""
    three, fifteen = fig3.FIGURE.presets["paper"].parts(), fig15.FIGURE.presets["paper"].parts()
    main = three["left"] + three["middle"] + fig11.runs(fig11.FIGURE.presets["paper"])
    return {
        "fig3 left and middle, fig11": [run for run in main if run.config.task.length <= 256],
        "fig14, fig15 Adam": fig14.runs(fig14.FIGURE.presets["paper"]) + fifteen["adam"],
        "fig13": fig13.runs(fig13.FIGURE.presets["paper"]),
        "precision": precision.runs(precision.FIGURE.presets["paper"]),
        "fig3 right, fig12": three["right"] + fig12.runs(fig12.FIGURE.presets["paper"]),
        "fig3 left, length 512": [run for run in main if run.config.task.length > 256],
        "fig15 SGD": fifteen["sgd"],
    }


def main(state: Path, out: Path, seconds: float) -> None:
    begun = said = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    records, store = read_records(), Store(state)
    kinds = stages()
    todo: dict[str, list[Run]] = {}
    seen: set[str] = set()
    for name, runs in kinds.items():
        todo[name] = [run for run in runs if run not in records and run not in store and run.identity not in seen]
        seen |= {run.identity for run in todo[name]}
    everything = [run for runs in kinds.values() for run in runs if run not in records]
    everything = list({run.identity: run for run in everything}.values())
    timings: dict[str, float] = {}

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

    try:
        for name, runs in todo.items():
            start = time.monotonic()
            run_all(runs, store, curves=False, checkpoint_seconds=1e9, progress=watch)
            timings[name] = time.monotonic() - start
            print(f"[{time.monotonic() - begun:.0f} s] {name}: {len(runs)} runs in {timings[name]:.0f} s", flush=True)
    except KeyboardInterrupt:
        print("time is up", flush=True)
    shown = {run.identity for module in (fig11, fig12) for run in module.runs(module.FIGURE.presets["paper"])}
    results = [store.read(run, curves=run.identity in shown) for run in everything if run in store]
    runs, curves = record_tables(results, shown)
    runs.to_parquet(out / "zucchet2025.runs.parquet", index=False, compression="zstd")
    curves.to_parquet(out / "zucchet2025.curves.parquet", index=False, compression="zstd")
    done = {r.run.identity: r for r in results}
    summary: dict[str, Any] = {}
    for name, wanted in kinds.items():
        unique = {r.identity for r in wanted}
        summary[name] = {
            "runs": len(unique),
            "done": len(unique & set(done)),
            "steps": sum(done[i].steps for i in unique & set(done)),
        }
    summary["seconds of whole stages"] = timings
    summary["seconds"] = time.monotonic() - begun
    summary["device"] = jax.devices()[0].device_kind
    (out / "campaign.json").write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary, indent=1), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
