"""Time the training of language models against a compiled PyTorch loop.

    python benchmarks/text.py OUT_FOLDER SECONDS [PART ...] [--tiny]

The parts are `main` (one run, four runs together, 16 runs of width 256, and the peer of each),
`length`, `width`, `vocabulary` and `runs`: how time and memory grow with each. `text.csv` gets a
row when it is finished. Rows that are there are not measured again, and no row is begun when the
time is up, so the same call continues. `--tiny` takes sizes for a laptop.

Columns: `ms` per step of all runs together, `tokens_per_second` of all runs, and `ratio` to the
peer of the same size, which trains one run at a time. `memory_gb` is what the compiler needs for
the program, or PyTorch's peak.
"""

import dataclasses
import functools
import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import pandas as pd
from jaxtyping import Array

from benchmarks.training import step_seconds
from emergo.core.contract import Batch, Output, Spec
from emergo.core.random import raw, uniform
from emergo.models import Transformer
from emergo.tasks import Task, token_losses
from emergo.training import Config, Optimizer

PARTS = ("main", "length", "width", "vocabulary", "runs")
Framework = Literal["emergo", "pytorch"]


class RandomText(Task):
    """Uniform tokens, each of which has to be predicted. Their values do not change the time."""

    length: int
    vocabulary: int

    @property
    def spec(self) -> Spec:
        sizes = (self.length, self.vocabulary, self.vocabulary)
        return Spec(*sizes, answers=self.length, deferred=True)

    def truth(self, key: Array) -> tuple[()]:
        return ()

    def batch(self, key: Array, n: int, truth: Any) -> Batch:
        drawn = uniform(raw(key), n, self.length + 1)
        tokens = jnp.floor(self.vocabulary * drawn).astype(jnp.int32)
        return Batch(tokens[:, :-1], tokens[:, 1:])

    def loss(self, output: Output, batch: Batch) -> Array:
        return token_losses(output, batch.target).mean(-1)

    def probes(self) -> tuple[Any, ...]:
        return ()


@dataclasses.dataclass(frozen=True)
class TextCase:
    """A row of the table. The defaults are the reference model."""

    framework: Framework = "emergo"
    runs: int = 1
    layers: int = 4
    heads: int = 8
    width: int = 512
    length: int = 256
    batch: int = 64
    vocabulary: int = 4096

    @property
    def config(self) -> Config:
        model = Transformer(
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            norm="pre",
            mask="causal",
            activation="gelu",
            positions="learned",
        )
        return Config(
            RandomText(self.length, self.vocabulary),
            model,
            Optimizer("adamw", 1e-3, weight_decay=0.1),
            batch=self.batch,
            precision="bf16",
            steps=10_000,
            threshold=None,
            n_test=self.batch,
        )


REFERENCE = TextCase()
TINY = TextCase(layers=2, heads=2, width=16, length=8, batch=4, vocabulary=32)


def cases_of(part: str, base: TextCase = REFERENCE) -> Iterator[TextCase]:
    """Yield the rows of a part of the table."""
    change = functools.partial(dataclasses.replace, base)
    half = base.width // 2
    if part == "main":
        yield change(framework="pytorch")
        yield base
        yield change(runs=4)
        yield change(framework="pytorch", width=half)
        yield change(width=half, runs=16)
    elif part == "runs":
        yield from (change(width=half, runs=runs) for runs in (1, 4, 16, 32))
    else:
        factors = {"length": (0.5, 2, 4), "width": (0.5, 2), "vocabulary": (0.25, 4, 8)}[part]
        yield from (change(**{part: int(factor * getattr(base, part))}) for factor in factors)


def measured(case: TextCase, seconds: float) -> dict[str, Any]:
    """Measure a row for about so many seconds, without the time to compile."""
    if case.framework == "pytorch":
        from benchmarks.text_peer import peer_row, torch

        found: dict[str, Any] = {**peer_row(case, seconds), "version": torch.__version__}
    else:
        per_run, used = step_seconds(case, seconds)
        found = {"ms": 1e3 * per_run * case.runs, "memory_gb": used / 1e9}
        found["version"] = jax.__version__
    tokens = case.runs * case.batch * case.length
    rate = 1e3 * tokens / found["ms"]
    return {**found, "tokens_per_second": rate, "device": jax.devices()[0].device_kind}


def with_ratios(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Add the ratio of each row to the peer of the same size, NaN if there is none."""
    table = pd.DataFrame(rows)
    sizes = ["layers", "heads", "width", "length", "batch", "vocabulary"]
    peers = table[table.framework == "pytorch"].set_index(sizes).tokens_per_second
    own = pd.MultiIndex.from_frame(table[sizes])
    return table.assign(ratio=table.tokens_per_second.to_numpy() / peers.reindex(own).to_numpy())


def main(out: Path, seconds: float, parts: tuple[str, ...] = PARTS, tiny: bool = False) -> None:
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    path = out / "text.csv"
    rows = pd.read_csv(path).to_dict("records") if path.exists() else []
    names = [field.name for field in dataclasses.fields(TextCase)]
    done = {tuple(row[name] for name in names) for row in rows}
    for case in (case for part in parts for case in cases_of(part, TINY if tiny else REFERENCE)):
        missing = case.framework == "pytorch" and importlib.util.find_spec("torch") is None
        if dataclasses.astuple(case) in done or missing:
            continue
        if time.monotonic() - begun > seconds:
            return
        try:
            found = measured(case, 0.05 if tiny else 5.0)
        except (MemoryError, RuntimeError) as error:
            found = {"error": str(error).splitlines()[0], "tokens_per_second": float("nan")}
        rows.append(dataclasses.asdict(case) | found)
        done.add(dataclasses.astuple(case))
        with_ratios(rows).to_csv(path, index=False)
        print(f"[{time.monotonic() - begun:.0f} s]", rows[-1], flush=True)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    if len(words) < 2 or "--help" in sys.argv:
        sys.exit(__doc__)
    if unknown := set(words[2:]) - set(PARTS):
        sys.exit(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    main(Path(words[0]), float(words[1]), tuple(words[2:]) or PARTS, "--tiny" in sys.argv)
