"""Measure the cost of comparing optimised paths with `apply` before training.

    python benchmarks/verification.py [FIGURE] [--preset PRESET]

Trains a figure twice in fresh processes: first with empty caches of programs and verdicts, then
with the caches that the first process has filled. Prints the share of the time that the comparison
takes, in wall time and in processor time; the latter counts if the machine is busy. The limits are
15% and 5%.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

LIMITS = {"cold": 0.15, "warm": 0.05}


def clocks() -> np.ndarray:
    """Return wall time and processor time."""
    return np.array([time.monotonic(), time.process_time()])


def measure(figure: str, preset: Any) -> dict[str, Any]:
    """Train the runs of a figure; return the seconds in total and in comparisons."""
    begun = clocks()
    import emergo as em
    from emergo.papers import find_figure
    from emergo.training import _scheduler

    compared = np.zeros(2)
    verify_path = _scheduler.verify_path

    def timed(*arguments: Any) -> None:
        nonlocal compared
        start = clocks()
        verify_path(*arguments)
        compared += clocks() - start

    runs = find_figure(figure).runs(preset)
    with mock.patch.object(_scheduler, "verify_path", timed):
        em.train(runs)
    seconds = clocks() - begun
    return {"runs": len(runs), "seconds": seconds.tolist(), "compared": compared.tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("figure", nargs="?", default="zucchet2025/fig3")
    parser.add_argument("--preset", default="laptop")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.figure, options.preset)))
        return
    command = [sys.executable, __file__, options.figure, "--preset", options.preset, "--measure"]
    with tempfile.TemporaryDirectory() as folder:
        root = str(Path(__file__).parents[1])
        environment = os.environ | {"EMERGO_CACHE": folder, "PYTHONPATH": root}
        for state, limit in LIMITS.items():
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            result = json.loads(done.stdout.splitlines()[-1])
            print(f"{options.figure}, {options.preset}, {state} cache, {result['runs']} runs:")
            times = zip(("wall", "processor"), result["seconds"], result["compared"], strict=True)
            for clock, total, compared in times:
                share = f"{compared / total:.1%} (limit {limit:.0%})"
                print(f"  {clock} time {total:.1f} s, comparison {compared:.1f} s = {share}")


if __name__ == "__main__":
    main()
