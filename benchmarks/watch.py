"""What `emergo.torch.watch` costs: the plain PyTorch loop of our Transformers, with and without it,
on this machine; on a GPU if there is one.

    python -m benchmarks.watch [LOOKS]        by default 20 of each model

Steps that are looked at alternate with steps that are not, so that other work on the machine meets
both alike. On a CPU one thread computes and its CPU seconds are counted; on a GPU, seconds from
step to step. `looking` is what one look adds, the median over all; `counter` is what a call of
watch takes in all other steps; `at 50` is what both add to an average step when every 50th is
looked at. Heads are scored, and the log is written, as for a user.

`calls` is the number of PyTorch operations in a step that is looked at, over that in a plain step.
Where small kernels leave a GPU waiting for the processor, a look takes as many times longer.
`equal` says whether the parameters and the batches after six steps are bit for bit the same with
and without watch.
"""

import statistics
import sys
import tempfile
import time
import timeit
from pathlib import Path

import torch

import emergo.torch as et
from benchmarks.peer import Peer, peer
from benchmarks.training import Case

EVERY = 50
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


def measure(loop: Peer, looks: int, folder: Path) -> tuple[float, float]:
    """Seconds of a step that is not looked at, and what a look adds: medians. Of three steps the
    first one is looked at; in the last one `watch` prepares for the next look."""
    plain = []
    looking = []
    with et.watch(loop.model, folder / "log.csv", every=3) as watch:
        for _ in range(looks + 1):
            times = []
            for _ in range(3):
                begun = clock()
                watch(loss=loop.step())
                times.append(clock() - begun)
            plain.append(times[1])
            looking.append(times[0] + times[2] - 2 * times[1])
    return statistics.median(plain[1:]), statistics.median(
        looking[1:]
    )  # the first time also compiles kernels


def counter(loop: Peer, folder: Path, calls: int = 100_000) -> float:
    """Seconds of a call in a step that is not looked at."""
    with et.watch(loop.model, folder / "counter.csv", every=10 * calls, start=1) as watch:
        return timeit.timeit(lambda: watch(loss=1.0), number=calls) / calls


def operations(loop: Peer, folder: Path) -> float:
    """PyTorch operations of a step that is looked at, over those of a step that is not."""
    counts = []
    with et.watch(loop.model, folder / "calls.csv", every=3) as watch:
        watch(loss=loop.step())  # finds out how the model is called
        for _ in range(3):  # in the second one `watch` prepares for the look in the third one
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU]
            ) as profile:
                watch(loss=loop.step())
            calls = (one.count for one in profile.key_averages() if one.key.startswith("aten::"))
            counts.append(sum(calls))
    return counts[2] / counts[0]


def unchanged(case: Case, folder: Path, steps: int = 6) -> bool:
    """Whether parameters and random numbers are the same with and without watch, bit for bit."""
    found = []
    for watched in (True, False):
        torch.manual_seed(1)
        loop = peer(case, device=DEVICE)
        if watched:
            with et.watch(loop.model, folder / "equal.csv", every=2) as watch:
                for _ in range(steps):
                    watch(loss=loop.step())
        else:
            for _ in range(steps):
                loop.step()
        found.append([*loop.model.state_dict().values(), next(loop.batches)[0]])
    return all(map(torch.equal, *found))


def main(looks: int) -> None:
    torch.set_num_threads(1 if DEVICE == "cpu" else torch.get_num_threads())
    print(
        f"{torch.cuda.get_device_name() if DEVICE == 'cuda' else 'CPU, one thread'}, PyTorch "
        f"{torch.__version__}"
    )
    print(f"{'':28} plain step    looking   counter   at {EVERY}   calls   equal")
    for name, case in CASES.items():
        torch.manual_seed(0)
        loop = peer(case, device=DEVICE)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            plain, look = measure(loop, looks, folder)
            count = counter(loop, folder)
            calls = operations(loop, folder)
            equal = unchanged(case, folder)
        share = (look / EVERY + count) / plain
        print(
            f"{name:28} {1e3 * plain:7.1f} ms {1e3 * look:7.1f} ms {1e6 * count:6.1f} µs   "
            f"{share:.2%}   {calls:5.1f}   {equal}",
            flush=True,
        )


if __name__ == "__main__":
    if "--help" in sys.argv:
        sys.exit(__doc__)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
