"""Training: our stack of runs against a plain PyTorch loop, the same under `torch.compile`, runs
that an expert has stacked in PyTorch by hand, and the roofline."""

import contextlib
import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array

from benchmarks.floor import floor_seconds, floor_work, matrix_rate, memory_bandwidth
from benchmarks.flows import median_seconds
from emergo.core.random import fold_in
from emergo.models import MinimalAttention, Transformer
from emergo.tasks import MarkovChain, Recall, SingleLocation
from emergo.training import Config, Optimizer, Precision, Run
from emergo.training._cost import Compiled, compile_chunk, memory_of
from emergo.training._program import Program, draw, start


class Stack(Protocol):
    """Runs that are trained together."""

    @property
    def runs(self) -> int: ...

    @property
    def config(self) -> Config: ...


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table."""

    layers: int
    heads: int
    length: int
    dim: int  # in recall and for a chain the number of tokens; `length` is that of what is read
    runs: int
    precision: Precision
    recall: bool = False
    # the minimal attention on a Markov chain, with the batch, data and optimizer of yuksel2026
    chain: bool = False

    @property
    def config(self) -> Config:
        if self.chain:
            task = MarkovChain(vocabulary=self.dim)
            model = MinimalAttention(heads=self.heads, layers=self.layers)
            optimizer = Optimizer("adamw", 0.08, clip=1.0, weight_decay=0.01)
            return Config(
                task, model, optimizer, 3000, self.precision, 2000, None, n_test=3000, n_train=9000
            )
        if self.recall:
            model = Transformer(layers=self.layers, heads=self.heads, mask="causal")
            return Config(Recall(self.length // 2, self.dim), model, precision=self.precision)
        task = SingleLocation(
            self.length, self.dim, position="random", indicator=True, special="draw"
        )
        return Config(
            task, Transformer(layers=self.layers, heads=self.heads), precision=self.precision
        )


def main_cases(platform: str) -> list[Case]:
    """One row or more of each task, to be held against PyTorch."""
    if platform == "cpu":
        first = [
            Case(2, 4, 64, 16, 4, "fp32"),
            Case(1, 1, 64, 16, 8, "fp32"),
            Case(4, 4, 65, 256, 2, "fp32", recall=True),
        ]
        return [*first, Case(1, 3, 25, 50, 2, "fp32", chain=True)]
    first = [
        Case(2, 4, 256, 64, 64, "bf16"),
        Case(1, 1, 256, 64, 128, "bf16"),
        Case(2, 4, 256, 64, 20, "tf32"),
    ]
    return [
        *first,
        Case(4, 4, 65, 256, 64, "bf16", recall=True),
        Case(1, 3, 25, 50, 8, "fp32", chain=True),
    ]


def default_cases(platform: str) -> list[Case]:
    """The main rows, then how cost grows with length, dim, layers and number of runs."""
    first = main_cases(platform)
    if platform == "cpu":
        grown = [
            Case(2, 4, 64, 16, 1, "fp32"),
            Case(2, 4, 128, 16, 4, "fp32"),
            Case(2, 4, 64, 64, 4, "fp32"),
        ]
        return (
            first
            + grown
            + [
                Case(4, 4, 64, 16, 4, "fp32"),
                Case(1, 1, 64, 16, 32, "fp32"),
                Case(1, 1, 256, 64, 8, "fp32"),
            ]
        )
    grown = [
        Case(1, 1, 256, 64, 16, "bf16"),
        Case(2, 4, 64, 64, 64, "bf16"),
        Case(2, 4, 256, 64, 16, "bf16"),
    ]
    more = [
        Case(2, 4, 512, 64, 64, "bf16"),
        Case(2, 4, 256, 128, 64, "bf16"),
        Case(4, 4, 256, 64, 32, "bf16"),
    ]
    return first + grown + more + [Case(2, 4, 256, 64, 20, "fp32")]


def compiled_stack(case: Stack) -> tuple[Callable[[int], Any], Compiled]:
    """What trains `case.runs` runs for so many steps and evaluates them, compiled, and its
    program."""
    program = Program.of(case.config)
    device = jax.devices()[0]
    compiled = compile_chunk(
        program,
        start(program, Run(case.config, 0)),
        case.runs,
        device,
        memory_of(device),
        tuned=True,
    )
    if compiled.n_parallel < case.runs:
        raise MemoryError(f"{case.runs} runs do not fit; {compiled.n_parallel} would")
    starts = (start(program, Run(case.config, seed)) for seed in range(case.runs))
    slots = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
    due = jnp.zeros(case.runs, jnp.int32)

    def train(steps: int) -> Any:
        nonlocal slots
        slots, metrics = compiled.run(slots, jnp.int32(steps), due, None)
        return slots, metrics

    jax.block_until_ready(train(1))
    return train, compiled


def step_seconds(case: Stack, seconds: float = 3.0) -> tuple[float, int]:
    """Seconds a step of one run takes in a stack of `case.runs`, evaluations left out, and the
    bytes of the program."""
    train, compiled = compiled_stack(case)
    evaluation = min(median_seconds(lambda: train(0)) for _ in range(3))
    once = max((median_seconds(lambda: train(5)) - evaluation) / 5, 1e-6)
    count = max(3, int(seconds / 3 / once))
    return (
        median_seconds(lambda: train(count), 3) - evaluation
    ) / count / case.runs, compiled.bytes


def sample_seconds(case: Case, steps: int = 200) -> float:
    """Seconds a step's data take to draw for one run, in a stack of `case.runs`: the same draws,
    and nothing done with them."""
    program = Program.of(case.config)
    slot = start(program, Run(case.config, 0))

    @jax.jit
    @jax.vmap
    def drawn(seed: Array) -> Array:
        def body(i: Array, total: Array) -> Array:
            data = draw(program, slot._replace(data_key=fold_in(slot.data_key, seed), step=i))
            return total + sum(jnp.sum(part.astype(jnp.float32)) for part in jax.tree.leaves(data))

        return jax.lax.fori_loop(0, steps, body, jnp.float32(0))

    seeds = jnp.arange(case.runs)
    drawn(seeds).block_until_ready()
    return median_seconds(lambda: drawn(seeds), 3) / steps / case.runs


@functools.cache
def peer_seconds(case: Case, seconds: float) -> tuple[float | None, float | None]:
    """Seconds that a step takes in PyTorch, plain and compiled; none where PyTorch, or its
    compiler, is missing."""
    if importlib.util.find_spec("torch") is None:
        return None, None
    from benchmarks.peer import torch_seconds

    plain = torch_seconds(case, seconds=seconds)
    with contextlib.suppress(
        Exception
    ):  # a compiler may be missing; the plain peer is the one that counts
        return plain, torch_seconds(case, compiled=True, seconds=seconds)
    return plain, None


def expert_peer(case: Case, seconds: float) -> float | None:
    """Seconds of a step of one run among as many in PyTorch, stacked by hand; none where PyTorch is
    missing."""
    if importlib.util.find_spec("torch") is None:
        return None
    from benchmarks.expert import expert_seconds

    return expert_seconds(case, seconds)


def bench_training(
    cases: Sequence[Case], peers: bool = True, seconds: float = 3.0
) -> Iterator[dict[str, Any]]:
    """Times the cases one by one, each way for about so many seconds.

    **Returns:** one row per case: milliseconds per step per run, runs of 10,000 steps an hour, the
    ratios to the peers (where PyTorch is installed and `peers` is set), the share of the arithmetic
    floor and of the roofline, and the least time of each class of kernels.
    """
    bandwidth = memory_bandwidth()
    for case in cases:
        row = dataclasses.asdict(case) | {"name": "training"}
        rate = matrix_rate(case.precision)
        try:
            ours, used = step_seconds(case, seconds)
        except MemoryError as error:
            yield row | {"error": str(error)}
            continue
        alone = dataclasses.replace(case, runs=1, precision="fp32")
        plain, compiled = peer_seconds(alone, seconds) if peers else (None, None)
        expert = expert_peer(case, seconds) if peers else None
        work = floor_work(case.config, rate, bandwidth)
        floor = sum(each.operations for each in work.values()) / rate
        roofline = floor_seconds(case.config, rate, bandwidth)
        row |= {"ms": 1e3 * ours, "runs_per_hour": 3600 / (1e4 * ours)}
        row |= {"torch_ms": plain and 1e3 * plain, "torch_compile_ms": compiled and 1e3 * compiled}
        row |= {"expert_ms": expert and 1e3 * expert, "ratio_expert": expert and expert / ours}
        row |= {"ratio": plain and plain / ours, "ratio_compile": compiled and compiled / ours}
        row |= {
            "floor_ms": 1e3 * floor,
            "share_of_floor": floor / ours,
            "share_of_drawing": sample_seconds(case) / ours,
        }
        row |= {"roofline_ms": 1e3 * roofline, "share_of_roofline": roofline / ours}
        row |= {
            f"least_{name}_ms": 1e3 * each.seconds(rate, bandwidth) for name, each in work.items()
        }
        row |= {"matrix_tflops": rate / 1e12, "bandwidth_tb": bandwidth / 1e12}
        yield row | {"program_gb": used / 1e9, "device": jax.devices()[0].device_kind}
