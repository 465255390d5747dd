"""Show where each millisecond of a training step goes, kernel by kernel, from a profiler trace.

    python benchmarks/kernels.py OUT_FOLDER [ROW ...]

Rows are the main rows of `benchmarks/training.py` by number; by default row 0. A chunk of ten steps
is traced, and one of none, whose kernels are of the evaluation alone: the difference, over ten, is
a step. Writes `kernels.csv` after every row: the kernel, what it is of, its calls and milliseconds
in a step of all runs of the stack together.
"""

import collections
import functools
import glob
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import jax
import pandas as pd

from benchmarks.flows import median_seconds
from benchmarks.training import Case, compiled_stack, main_cases

STEPS = 10
PARTS = (  # the first that is found in a kernel's name or in that of its operation
    ("kernels of our own", r"^_(\w+_)?kernel(_+\d+)? "),
    ("attention", r"sdpa|cudnn|dot_product_attention"),
    ("products", r"gemm|nvjet|cutlass|dot_general|(^|[ _])dot"),
    ("data", r"normals|uniform|sort"),
    ("passes back", r"transpose\(.*jvp"),
    ("passes forward", r"jvp"),
)


def part_of(kernel: str, operation: str) -> str:
    found = (name for name, pattern in PARTS if re.search(pattern, f"{kernel} {operation}"))
    return next(found, "optimizer and the rest")


def operations_of(program: str) -> dict[str, str]:
    """The operation, in the names of JAX, that every kernel of a compiled program stems from."""
    lines = re.finditer(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*?op_name="([^"]*)"', program, re.MULTILINE)
    return {re.sub(r"[.\-]", "_", line[1]): line[2] for line in lines}


def traced(work: Callable[[], Any]) -> Iterator[tuple[str, float]]:
    """The kernels that run, with their seconds; on a CPU what XLA calls its thunks."""
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level, options.python_tracer_level = (
        (2, 0) if jax.default_backend() == "cpu" else (0, 0)
    )
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        jax.block_until_ready(work())
        jax.profiler.stop_trace()
        (file,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        planes = list(jax.profiler.ProfileData.from_file(file).planes)
    wanted = "/host:CPU" if jax.default_backend() == "cpu" else "/device:GPU"
    for plane in (plane for plane in planes if plane.name.startswith(wanted)):
        for line in plane.lines:
            for event in line.events:
                yield re.sub(r"[.\-]", "_", event.name), event.duration_ns * 1e-9


def kernels_of(case: Case) -> tuple[pd.DataFrame, float]:
    """The kernels of a step, and its milliseconds by the clock."""
    train, compiled = compiled_stack(case)
    operations = operations_of(cast(jax.stages.Compiled, compiled.run).as_text() or "")
    sums: dict[str, float] = collections.defaultdict(float)
    calls: collections.Counter[str] = collections.Counter()
    for steps, sign in ((STEPS, 1), (0, -1)):
        for kernel, seconds in traced(functools.partial(train, steps)):
            if jax.default_backend() != "cpu" or kernel in operations:
                sums[kernel] += sign * 1e3 * seconds / STEPS
                calls[kernel] += sign
    rows = [
        {"part": part_of(kernel, operations.get(kernel, "")), "kernel": kernel[:120]}
        | {
            "operation": operations.get(kernel, ""),
            "calls": calls[kernel] / STEPS,
            "ms": sums[kernel],
        }
        for kernel in sorted(sums, key=lambda kernel: -sums[kernel])
        if calls[kernel] > 0
    ]
    return pd.DataFrame(rows), 1e3 * (
        median_seconds(lambda: train(STEPS)) - median_seconds(lambda: train(0))
    ) / STEPS


def main(out: Path, numbers: list[int]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tables = []
    for number in numbers:
        case = main_cases(jax.default_backend())[number]
        kernels, whole = kernels_of(case)
        tables.append(kernels.assign(row=number))
        pd.concat(tables).to_csv(out / "kernels.csv", index=False)
        parts = kernels.groupby("part")["ms"].sum().sort_values(ascending=False)
        print(
            f"row {number}, {case.runs} runs: {whole:.3f} ms a step by the clock, "
            f"{parts.sum():.3f} ms in kernels"
        )
        print(parts.round(3).to_string(header=False), flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2 or "--help" in sys.argv:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), list(map(int, sys.argv[2:])) or [0])
