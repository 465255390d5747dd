"""Compare the training speed of this checkout with that of another one, in one call.

    python benchmarks/compare.py OTHER_CHECKOUT OUT_FOLDER SECONDS [ROW ...]

Rows are the main rows of `benchmarks/training.py` by number, 0 first; by default all of them. Both
checkouts run in a process each on the same device. For each row, first one process compiles its
program, then the other; then they train in turn, three times each, so that a clock that drifts
affects both. Writes `compare.csv` after every row: milliseconds per step and run (median of three)
before and after, and their ratio. No row begins when the time is up. OTHER_CHECKOUT may hold
version 0.2, whose benchmark was part of the package.
"""

import csv
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPEATS = 3
SECONDS = 0.6  # per measurement
HERE = Path(__file__).resolve().parents[1]


def serve() -> None:
    """Answer requests on standard input: compile a row, or time the row that was compiled last."""
    import jax

    try:
        from benchmarks.flows import median_seconds
        from benchmarks.training import compiled_stack, main_cases
    except ImportError:  # version 0.2
        from emergo.bench._flows import median_seconds  # pyright: ignore
        from emergo.bench._training import compiled_stack, main_cases  # pyright: ignore
    cases = main_cases(jax.default_backend())
    case = cases[0]
    train: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        if "compile" in request:
            train = None  # free the memory of the last row
            case = cases[request["compile"]]
            train, _ = compiled_stack(case)
            answer = 0.0
        else:
            evaluation = min(median_seconds(functools.partial(train, 0)) for _ in range(3))
            five = median_seconds(functools.partial(train, 5)) - evaluation
            count = max(3, int(5 * SECONDS / max(five, 1e-6)))
            total = median_seconds(functools.partial(train, count), 3) - evaluation
            answer = total / count / case.runs
        print(json.dumps({"answer": answer, "case": str(case)}), flush=True)


class Checkout:
    """A process that runs the benchmark of one checkout."""

    def __init__(self, folder: Path) -> None:
        environment = os.environ | {
            "PYTHONPATH": str(folder),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
        command = [sys.executable, __file__, "--serve"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=folder
        )

    def ask(self, **request: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the benchmark of a checkout ended without an answer")
        return json.loads(line)


def main(other: Path, out: Path, seconds: float, rows: list[int]) -> None:
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    checkouts = {"before": Checkout(other.resolve()), "after": Checkout(HERE)}
    results = []
    for row in rows or range(5):
        if time.monotonic() - begun > seconds:
            break
        for checkout in checkouts.values():
            checkout.ask(compile=row)
        times: dict[str, list[float]] = {name: [] for name in checkouts}
        answer: dict[str, Any] = {}
        for _ in range(REPEATS):
            for name, checkout in checkouts.items():
                answer = checkout.ask(time=row)
                times[name].append(1e3 * answer["answer"])
        medians = {f"{name}_ms": statistics.median(times[name]) for name in times}
        spread = {f"{name}_spread": max(times[name]) / min(times[name]) for name in times}
        ratio = medians["after_ms"] / medians["before_ms"]
        results.append(
            {"row": row} | medians | {"ratio": ratio} | spread | {"case": answer["case"]}
        )
        print(f"[{time.monotonic() - begun:.0f} s]", results[-1], flush=True)
        with (out / "compare.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(results[0]))
            writer.writeheader()
            writer.writerows(results)
    for checkout in checkouts.values():
        checkout.process.kill()


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    elif len(sys.argv) < 4 or "--help" in sys.argv:
        sys.exit(__doc__)
    else:
        words = sys.argv[1:]
        main(Path(words[0]), Path(words[1]), float(words[2]), [int(word) for word in words[3:]])
