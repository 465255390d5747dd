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


@dataclasses.dataclass(frozen=True)
class Bench:
    """Speed: plateaus in one compiled call against a loop over SciPy's solver; training against PyTorch."""

    benchmark: Positional[Literal["flows", "training", "all"]] = "all"
    """Which."""
    cells: int = 1000
    """How many cells, for flows."""
    quick: bool = False
    """Only the first rows of training."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        if self.cells < 1:
            raise InputError(f"--cells must be at least 1, got {self.cells}")
        load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
        if load > cores / 4:
            say(f"this machine is busy or just was (load {load:.1f}, {cores} cores); other work spoils timings")
        found = []
        if self.benchmark != "training":
            found.append(self._flows())
        if self.benchmark != "flows":
            found += self._training()
        if self.json:
            print_json({"benchmarks": found})

    def _training(self) -> list[dict[str, Any]]:
        import jax

        from ..bench import bench_training, default_cases

        if importlib.util.find_spec("torch") is None:
            say("PyTorch is not installed, so nothing is compared with it: pip install '.[bench]'")
        cases = default_cases(jax.default_backend())
        if self.quick:
            cases = cases[: 2 if jax.default_backend() == "cpu" else 3]
        rows, found = bench_training(cases), []
        if not self.json:
            print(_HEAD, flush=True)
        while True:
            with contextlib.redirect_stdout(sys.stderr):  # compilers talk
                row = next(rows, None)
            if row is None:
                return found
            found.append(row)
            if not self.json:
                print(_row(row), flush=True)

    def _flows(self) -> dict[str, Any]:
        from ..bench import bench_flows

        found = bench_flows(self.cells)
        if self.json:
            return found
        print(
            f"{found['cells']} plateaus at rtol {found['rtol']:g}: {found['seconds']:.3f} s warm "
            f"(compilation {found['compile_seconds']:.1f} s), "
            f"SciPy {found['scipy_seconds']:.1f} s: {found['ratio']:.0f} times as fast; "
            f"largest relative difference {found['largest_relative_difference']:.1e}",
            flush=True,
        )
        return found


_HEAD = (
    "layers heads    T    d  runs  precision  ms/step/run  runs/hour  x PyTorch  x torch.compile  of floor\n"
    "                                                     (10,000 steps)"
)


def _row(row: dict[str, Any]) -> str:
    size = f"{row['layers']:6} {row['heads']:5} {row['length']:4} {row['dim']:4} {row['runs']:5}  {row['precision']:>9}"
    if "error" in row:
        return f"{size}  {row['error']}"
    ratios = ("-" if row[name] is None else f"{row[name]:.1f}" for name in ("ratio", "ratio_compile"))
    plain, compiled = ratios
    speed = f"{row['ms']:11.3g}  {row['runs_per_hour']:9.3g}"
    return f"{size}  {speed}  {plain:>9}  {compiled:>15}  {row['share_of_floor']:8.0%}"
