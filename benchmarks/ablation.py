"""Time a training step with all of our own kernels, and with each set of them left out.

    python benchmarks/ablation.py OUT_FOLDER [ROW[:SET,...] ...]

Rows are the main rows of `benchmarks/training.py` by number; by default row 0. `0:stream,MLP`
leaves out only these two sets; without names every set is left out in turn, and then all of them.
All variants of a row are compiled first and then timed in turn, three times, so that a clock that
drifts is the same for all. Writes `ablation.csv` after every row: milliseconds per step and run
(median, smallest, largest) and the ratio to all kernels. Sets that do not apply to a row, as on a
CPU, have no variant.
"""

import contextlib
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, cast
from unittest import mock

import jax
import numpy as np
import pandas as pd

from benchmarks.flows import median_seconds
from benchmarks.training import Case, compiled_stack, main_cases
from emergo.training import _cost
from emergo.training._cost import Compiled

SETS = {
    "MLP": "_mlp_kernel",
    "stream": "_stream_kernels",
    "chain": "_chain_kernels",
}
SECONDS = 1.0
ROUNDS = 3


@contextlib.contextmanager
def kernels(left_out: Collection[str], used: set[str] | None = None) -> Iterator[None]:
    """Models are traced anew, and these sets say that they do not apply; those that do are added to
    `used`."""
    jax.clear_caches()
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            mock.patch.object(_cost, "_compile", inspect.unwrap(_cost._compile))
        )  # which else keeps programs
        for name, file in SETS.items():
            module = importlib.import_module(f"emergo.models.fast.{file}")

            def applies(
                *sizes: Any, name: str = name, real: Callable[..., bool] = module.applies
            ) -> bool:
                if name in left_out or not real(*sizes):
                    return False
                if used is not None:
                    used.add(name)
                return True

            stack.enter_context(mock.patch.object(module, "applies", applies))
        yield


def variants(case: Case, chosen: Collection[str]) -> dict[str, Callable[[int], Any]]:
    """What trains the row, by the kernels that are left out: of the chosen sets, or of every one
    and of all."""
    used: set[str] = set()
    with kernels((), used):
        train, whole = compiled_stack(case)
    compiled = {"all kernels": train}
    sets = [(name,) for name in SETS if name in used and name in (chosen or SETS)]
    for names in [*sets, tuple(used)] if len(used) > 1 and not chosen else sets:
        with kernels(names):
            train, program = compiled_stack(case)
        if _text(program) == _text(whole):
            raise RuntimeError(
                f"the program without {', '.join(names)} is the one with all kernels"
            )
        compiled["without " + (names[0] if len(names) == 1 else "any")] = train
    return compiled


def _text(program: Compiled) -> str:
    """Its instructions, without the tables of source lines, which differ by where it was
    compiled."""
    text = cast(jax.stages.Compiled, program.run).as_text() or ""
    return re.sub(r"(?ms)^FileNames$.*?^StackFrames$.*?^$", "", text)


def parsed(words: list[str]) -> list[tuple[int, Case, list[str]]]:
    """The rows with the sets to be left out of each; ends with one line where there is no such row
    or set."""
    cases = main_cases(jax.default_backend())
    rows = []
    for word in words:
        number, _, names = word.partition(":")
        if not number.isdecimal() or int(number) >= len(cases):
            sys.exit(f"no such row: {word}; there are 0 to {len(cases) - 1}")
        sets = [name for name in names.split(",") if name]
        if unknown := set(sets) - set(SETS):
            sys.exit(
                f"no such set of kernels: {', '.join(sorted(unknown))}; there are {', '.join(SETS)}"
            )
        rows.append((int(number), cases[int(number)], sets))
    return rows


def milliseconds(train: Callable[[int], Any], case: Case) -> float:
    """Of a step of one run, evaluations left out."""
    evaluation = median_seconds(lambda: train(0))
    once = max((median_seconds(lambda: train(5)) - evaluation) / 5, 1e-6)
    steps = max(3, int(SECONDS / 3 / once))
    return (
        1e3 * (median_seconds(functools.partial(train, steps), 3) - evaluation) / steps / case.runs
    )


def main(out: Path, wanted: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for number, case, sets in parsed(wanted):
        trained = variants(case, sets)
        if left := set(sets) - {name.removeprefix("without ") for name in trained}:
            print(f"row {number} has no kernels of the set {', '.join(sorted(left))} here")
        timed = {name: [] for name in trained}
        for _ in range(ROUNDS):
            for name, train in trained.items():
                timed[name].append(milliseconds(train, case))
        whole = float(np.median(timed["all kernels"]))
        for name, ms in timed.items():
            row = {"row": number, "runs": case.runs, "variant": name, "ms": float(np.median(ms))}
            row |= {"least_ms": min(ms), "most_ms": max(ms), "ratio": float(np.median(ms)) / whole}
            rows.append(row | {"device": jax.devices()[0].device_kind, "jax": jax.__version__})
            print(
                f"row {number}, {name}: {row['ms']:.4f} ms ({min(ms):.4f} to {max(ms):.4f}), "
                f"{row['ratio']:.3f}",
                flush=True,
            )
        pd.DataFrame(rows).to_csv(out / "ablation.csv", index=False)


if __name__ == "__main__":
    if len(sys.argv) < 2 or "--help" in sys.argv:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:] or ["0"])
