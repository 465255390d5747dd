"""Training: our stack of runs against a plain PyTorch loop, the same under `torch.compile`, and the arithmetic floor."""

import contextlib
import dataclasses
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._random import fold_in
from ..engine import Config, Optimizer, Precision, Run
from ..engine._cost import compile_chunk, memory_of
from ..engine._program import Program, draw, insert, products, start
from ..models import MinimalAttention, Transformer
from ..tasks import MarkovChain, Recall, SingleLocation
from ._floor import floor_operations


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table."""

    layers: int
    heads: int
    length: int
    dim: int
    """In recall and for a chain the number of tokens; `length` is that of what is read."""
    runs: int
    precision: Precision
    recall: bool = False
    chain: bool = False
    """The minimal attention on a Markov chain, with the batch, data and optimizer of yuksel2026."""

    @property
    def config(self) -> Config:
        if self.chain:
            task, model = MarkovChain(vocabulary=self.dim), MinimalAttention(heads=self.heads, layers=self.layers)
            optimizer = Optimizer("adamw", 0.08, clip=1.0, weight_decay=0.01)
            return Config(task, model, optimizer, 3000, self.precision, 2000, None, n_test=3000, n_train=9000)
        if self.recall:
            model = Transformer(layers=self.layers, heads=self.heads, mask="causal")
            return Config(Recall(self.length // 2, self.dim), model, precision=self.precision)
        task = SingleLocation(self.length, self.dim, position="random", indicator=True, special="draw")
        return Config(task, Transformer(layers=self.layers, heads=self.heads), precision=self.precision)


def main_cases(platform: str) -> list[Case]:
    """One row or more of each task, to be held against PyTorch."""
    if platform == "cpu":
        first = [Case(2, 4, 64, 16, 4, "fp32"), Case(1, 1, 64, 16, 8, "fp32"), Case(4, 4, 65, 256, 2, "fp32", recall=True)]
        return [*first, Case(1, 3, 25, 50, 2, "fp32", chain=True)]
    first = [Case(2, 4, 256, 64, 64, "bf16"), Case(1, 1, 256, 64, 128, "bf16"), Case(2, 4, 256, 64, 20, "tf32")]
    return [*first, Case(4, 4, 65, 256, 64, "bf16", recall=True), Case(1, 3, 25, 50, 8, "fp32", chain=True)]


def default_cases(platform: str) -> list[Case]:
    """The main rows, then how cost grows with length, dim, layers and number of runs."""
    first = main_cases(platform)
    if platform == "cpu":
        grown = [Case(2, 4, 64, 16, 1, "fp32"), Case(2, 4, 128, 16, 4, "fp32"), Case(2, 4, 64, 64, 4, "fp32")]
        return first + grown + [Case(4, 4, 64, 16, 4, "fp32"), Case(1, 1, 64, 16, 32, "fp32"), Case(1, 1, 256, 64, 8, "fp32")]
    grown = [Case(1, 1, 256, 64, 16, "bf16"), Case(2, 4, 64, 64, 64, "bf16"), Case(2, 4, 256, 64, 16, "bf16")]
    more = [Case(2, 4, 512, 64, 64, "bf16"), Case(2, 4, 256, 128, 64, "bf16"), Case(4, 4, 256, 64, 32, "bf16")]
    return first + grown + more + [Case(2, 4, 256, 64, 20, "fp32")]


def matrix_rate(precision: Precision, size: int | None = None) -> float:
    """Operations a second of one large matrix product: the ceiling that the floor is counted with."""
    size = size or (2048 if jax.default_backend() == "cpu" else 8192)
    kind = jnp.bfloat16 if precision == "bf16" else jnp.float32
    a, b = (jax.random.normal(jax.random.key(i), (size, size), jnp.float32).astype(kind) for i in range(2))
    with products(precision):
        product = jax.jit(jnp.matmul)
        product(a, b).block_until_ready()
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            out = [product(a, b) for _ in range(4)]
            jax.block_until_ready(out)
            times.append((time.perf_counter() - begun) / 4)
    return 2 * size**3 / sorted(times)[2]


def step_seconds(case: Case, seconds: float = 3.0) -> tuple[float, int]:
    """Seconds a step of one run takes in a stack of `case.runs`, evaluations left out, and the bytes of the program."""
    program, device = Program.of(case.config), jax.devices()[0]
    slot = start(program, Run(case.config, 0))
    compiled = compile_chunk(program, slot, case.runs, device, memory_of(device), tuned=True)
    if compiled.n_parallel < case.runs:
        raise MemoryError(f"{case.runs} runs do not fit; {compiled.n_parallel} would")
    slots = jax.tree.map(lambda x: jnp.repeat(x[None], case.runs, 0), slot)
    for i in range(case.runs):
        slots = insert(slots, jnp.int32(i), start(program, Run(case.config, i)))
    due = jnp.zeros(case.runs, jnp.int32)

    def go(steps: int) -> float:
        nonlocal slots
        begun = time.perf_counter()
        slots, metrics = compiled.run(slots, jnp.int32(steps), due)
        jax.block_until_ready((slots, metrics))
        return time.perf_counter() - begun

    go(1)
    evaluation = min(go(0) for _ in range(3))
    once = max((go(5) - evaluation) / 5, 1e-6)
    count = max(3, int(seconds / 3 / once))
    times = sorted((go(count) - evaluation) / count / case.runs for _ in range(3))
    return times[1], compiled.bytes


def sample_seconds(case: Case, steps: int = 200) -> float:
    """Seconds a step's data take to draw for one run, in a stack of `case.runs`: the same draws, and nothing done with them."""
    program = Program.of(case.config)
    slot = start(program, Run(case.config, 0))

    @jax.jit
    def drawn(seeds: Array) -> Array:
        def one(seed: Array) -> Array:
            def body(i: Array, total: Array) -> Array:
                data = draw(program, slot._replace(data_key=fold_in(slot.data_key, seed), step=i))
                return total + sum(jnp.sum(part.astype(jnp.float32)) for part in jax.tree.leaves(data))

            return jax.lax.fori_loop(0, steps, body, jnp.float32(0))

        return jax.vmap(one)(seeds)

    seeds = jnp.arange(case.runs)
    drawn(seeds).block_until_ready()
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        drawn(seeds).block_until_ready()
        times.append(time.perf_counter() - begun)
    return sorted(times)[1] / steps / case.runs


def bench_training(
    cases: Sequence[Case] | None = None, peers: bool = True, note: Callable[[str], None] = lambda text: None
) -> Iterator[dict[str, Any]]:
    """Times the cases one by one.

    **Returns:**

    For each, as soon as it is timed: milliseconds per step per run, runs of 10,000 steps an hour, the ratios to the peers
    (where PyTorch is installed and `peers` is set) and the share of the arithmetic floor.
    """
    cases = default_cases(jax.default_backend()) if cases is None else cases
    rates: dict[str, float] = {}
    plain: dict[tuple[int, int, int, int, bool, bool], dict[str, float | None]] = {}
    for case in cases:
        note(f"{case}")
        if case.precision not in rates:
            rates[case.precision] = matrix_rate(case.precision)
        size = (case.layers, case.heads, case.length, case.dim, case.recall, case.chain)
        try:
            ours, used = step_seconds(case)
        except MemoryError as error:
            yield dataclasses.asdict(case) | {"name": "training", "error": str(error)}
            continue
        if peers and size not in plain:
            plain[size] = _peers(*size)
        theirs = plain.get(size, {})
        floor = floor_operations(case.config) / rates[case.precision]
        yield dataclasses.asdict(case) | {
            "name": "training",
            "ms": 1e3 * ours,
            "runs_per_hour": 3600 / (1e4 * ours),
            "torch_ms": _scaled(theirs.get("plain")),
            "torch_compile_ms": _scaled(theirs.get("compiled")),
            "ratio": _over(theirs.get("plain"), ours),
            "ratio_compile": _over(theirs.get("compiled"), ours),
            "floor_ms": 1e3 * floor,
            "share_of_floor": floor / ours,
            "share_of_drawing": sample_seconds(case) / ours,
            "matrix_tflops": rates[case.precision] / 1e12,
            "program_gb": used / 1e9,
            "device": jax.devices()[0].device_kind,
        }


def _scaled(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _over(theirs: float | None, ours: float) -> float | None:
    return None if theirs is None else theirs / ours


def _peers(layers: int, heads: int, length: int, dim: int, recall: bool, chain: bool) -> dict[str, float | None]:
    if importlib.util.find_spec("torch") is None:
        return {}
    from ._peer import torch_seconds

    sizes, kind = (layers, heads, length, dim), {"recall": recall, "chain": chain}
    found: dict[str, float | None] = {"plain": torch_seconds(*sizes, **kind), "compiled": None}
    with contextlib.suppress(Exception):  # a compiler may be missing; the plain peer is the one that counts
        found["compiled"] = torch_seconds(*sizes, compiled=True, **kind)
    return found
