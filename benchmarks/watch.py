"""What `emergo.torch.watch` costs: the plain PyTorch loop of our Transformers, with and without it,
on this machine; on a GPU if there is one.

    python -m benchmarks.watch [ROUNDS]        by default 5 of each model, of four rows each

The aim is a cost below 1% of the training time when every 50th step is observed. Three numbers
concern it, each for an average step:

- `at 50` is measured. On a CPU one thread computes and its CPU seconds are counted; on a GPU,
  seconds from step to step. Observed steps alternate with plain ones, so that other work on the
  machine meets both alike. `looking` is what a row of the log adds, in the observed step and in the
  step before, which prepares it. Heads are scored in one row of four, so four rows are one round,
  and the median round counts. `counter` is what a call of watch takes in all other steps.
- `calls at 50` is predicted from `calls`, the PyTorch operations of a plain step, and those that a
  row adds. It holds where a GPU waits for its next kernel, if every operation costs the same. A
  call for a list of tensors counts once, as on a GPU. The counts do not depend on the machine.
- `Python at 50` is the CPU time of the same model with a width of 8 and 16 tokens, where hardly
  anything is computed. It includes hooks, and the writing of the log. On a GPU that waits, the
  share is smaller, because launching a kernel costs more than computing so little.

`equal` says whether the parameters and the batches after six steps are bit for bit the same with
and without watch. On a GPU this needs deterministic algorithms: by default the backward pass of
attention adds in any order, so that two plain loops differ, too.
"""

import contextlib
import dataclasses
import os
import statistics
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import emergo.torch as et
from benchmarks.peer import Peer, peer
from benchmarks.training import Case

EVERY = 50
ROWS = 4  # heads are scored in one of them
CASES = {
    "two layers, T 256, d 64": Case(2, 4, 256, 64, 1, "fp32"),
    "one layer, T 256, d 64": Case(1, 1, 256, 64, 1, "fp32"),
    "recall, four layers, T 65": Case(4, 4, 65, 256, 1, "fp32", recall=True),
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def clock() -> float:
    if DEVICE == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measure(loop: Peer, rounds: int, folder: Path) -> tuple[float, float]:
    """Seconds of a plain step, and what a row adds. Of three steps the first one is observed; in
    the last one `watch` prepares for the next row."""
    plain = []
    looking = []
    with et.watch(loop.model, folder / "log.csv", every=3) as watch:
        for _ in range(ROWS * (rounds + 1)):
            times = []
            for _ in range(3):
                begun = clock()
                watch(loss=loop.step())
                times.append(clock() - begun)
            plain.append(times[1])
            looking.append(times[0] + times[2] - 2 * times[1])
    # The first round also compiles kernels.
    each = [statistics.mean(looking[i : i + ROWS]) for i in range(ROWS, len(looking), ROWS)]
    return statistics.median(plain[ROWS:]), statistics.median(each)


def counter(loop: Peer, folder: Path, calls: int = 100_000) -> float:
    """Seconds of a call in a step that is not observed."""
    with et.watch(loop.model, folder / "counter.csv", every=10 * calls, start=1) as watch:
        return timeit.timeit(lambda: watch(loss=1.0), number=calls) / calls


class Counter(TorchDispatchMode):
    """Count the PyTorch operations in a block, those of the backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def operations(loop: Peer, folder: Path) -> tuple[int, float]:
    """PyTorch operations of a plain step, and what a row adds on average."""
    counts = []
    for group in loop.optimizer.param_groups:
        group["foreach"] = True  # the default on a GPU
    with et.watch(loop.model, folder / "calls.csv", every=3) as watch:
        watch(loss=loop.step())  # finds out how the model is called
        for _ in range(3 * ROWS):  # in the second of three `watch` prepares for the third
            with Counter() as count:
                watch(loss=loop.step())
            counts.append(count.calls)
    plain = counts[0]
    return plain, (sum(counts) - len(counts) * plain) / ROWS


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Use deterministic algorithms on a GPU."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(DEVICE == "cuda")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def unchanged(case: Case, steps: int = 6) -> bool:
    """Whether parameters and random numbers are the same with and without watch, bit for bit."""
    found = []
    for watched in (True, False):
        torch.manual_seed(1)
        loop = peer(case, device=DEVICE)
        with deterministic(), tempfile.TemporaryDirectory() as place:
            if watched:
                with et.watch(loop.model, Path(place) / "log.csv", every=2) as watch:
                    for _ in range(steps):
                        watch(loss=loop.step())
            else:
                for _ in range(steps):
                    loop.step()
        found.append([*loop.model.state_dict().values(), next(loop.batches)[0]])
    return all(map(torch.equal, *found))


@contextlib.contextmanager
def workspace() -> Iterator[None]:
    """Give cuBLAS the workspace that deterministic algorithms need. It is read when CUDA starts."""
    name = "CUBLAS_WORKSPACE_CONFIG"
    before = os.environ.get(name)
    os.environ[name] = ":4096:8"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def main(rounds: int) -> None:
    torch.set_num_threads(1 if DEVICE == "cpu" else torch.get_num_threads())
    print(
        f"{torch.cuda.get_device_name() if DEVICE == 'cuda' else 'CPU, one thread'}, PyTorch "
        f"{torch.__version__}"
    )
    print(
        f"{'':26} plain step    looking   counter   at {EVERY}        calls   calls at {EVERY}"
        f"   Python at {EVERY}   equal"
    )
    for name, case in CASES.items():
        torch.manual_seed(0)
        loop = peer(case, device=DEVICE)
        small = dataclasses.replace(case, length=17 if case.recall else 16, dim=8)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            plain, look = measure(loop, rounds, folder)
            count = counter(loop, folder)
            calls, added = operations(loop, folder)
            equal = unchanged(case)
        with tempfile.TemporaryDirectory() as place:
            fast = peer(small, width=8, device=DEVICE)
            for group in fast.optimizer.param_groups:
                group["foreach"] = True
            python, row = measure(fast, 50 * rounds, Path(place))
        print(
            f"{name:26} {1e3 * plain:7.1f} ms {1e3 * look:7.1f} ms {1e6 * count:6.1f} µs   "
            f"{(look / EVERY + count) / plain:.2%}   {calls} + {added:3.0f}         "
            f"{added / EVERY / calls:.2%}          {row / EVERY / python:.2%}   {equal}",
            flush=True,
        )


if __name__ == "__main__":
    if "--help" in sys.argv:
        sys.exit(__doc__)
    with workspace():
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
