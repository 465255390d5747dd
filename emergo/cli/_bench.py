"""`emergo bench`."""

import contextlib
import dataclasses
import importlib.util
import os
import sys
from typing import Any, Literal

from tyro.conf import Positional

from .._errors import InputError
from .._terminal import print_json, say

HEAD = """layers heads    T    d  runs  precision  ms/step/run  runs/hour  x PyTorch  x torch.compile  x by hand  of roofline
                                                     (10,000 steps)"""
SIZES = "{layers:6} {heads:5} {length:4} {dim:4} {runs:5}  {precision:>9}  "
SPEED = "{ms:11.3g}  {runs_per_hour:9.3g}  {ratio:>9}  {ratio_compile:>15}  {ratio_expert:>9}  {share_of_roofline:11.0%}"
RATIOS = ("ratio", "ratio_compile", "ratio_expert")


@dataclasses.dataclass(frozen=True)
class Bench:
    """Speed: plateaus in one compiled call against a loop over SciPy's solver; training against PyTorch."""

    benchmark: Positional[Literal["flows", "training", "all"]] = "all"  # Which benchmark to run.
    cells: int = 1000  # Number of cells that the benchmark of flows integrates.
    quick: bool = False  # Only the first rows of training.
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        if self.cells < 1:
            raise InputError(f"--cells must be at least 1, got {self.cells}")
        load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
        if load > cores / 4:
            say(f"this machine is busy or just was (load {load:.1f}, {cores} cores); other work spoils timings")
        reports = [self._flows()] if self.benchmark != "training" else []
        reports += self._training() if self.benchmark != "flows" else []
        if self.json:
            print_json({"benchmarks": reports})

    def _flows(self) -> dict[str, Any]:
        from ..bench import bench_flows

        report = bench_flows(self.cells)
        if not self.json:
            ours = f"{report['seconds']:.3f} s warm (compilation {report['compile_seconds']:.1f} s)"
            theirs = f"SciPy {report['scipy_seconds']:.1f} s: {report['ratio']:.0f} times as fast"
            worst = f"largest relative difference {report['largest_relative_difference']:.1e}"
            print(f"{report['cells']} plateaus at rtol {report['rtol']:g}: {ours}, {theirs}; {worst}", flush=True)
        return report

    def _training(self) -> list[dict[str, Any]]:
        import jax

        from ..bench import bench_training, default_cases

        if importlib.util.find_spec("torch") is None:
            say("PyTorch is not installed, so nothing is compared with it: pip install '.[bench]'")
        cases = default_cases(jax.default_backend())
        if self.quick:
            cases = cases[: 2 if jax.default_backend() == "cpu" else 3]
        rows, reports = bench_training(cases), []
        if not self.json:
            print(HEAD, flush=True)
        while True:
            with contextlib.redirect_stdout(sys.stderr):  # compilers talk
                row = next(rows, None)
            if row is None:
                return reports
            reports.append(row)
            if not self.json:
                print(_row_words(row), flush=True)


def _row_words(row: dict[str, Any]) -> str:
    ratios = {name: "-" if row.get(name) is None else f"{row[name]:.1f}" for name in RATIOS}
    return SIZES.format(**row) + (row["error"] if "error" in row else SPEED.format(**row | ratios))
