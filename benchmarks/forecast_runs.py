"""Train the PyTorch models that forecasts are calibrated and judged on; see docs/forecast.md.

    python benchmarks/forecast_runs.py calibration OUT    the runs that the table is fitted to
    python benchmarks/forecast_runs.py judged OUT         the runs that forecasts are judged on
    python benchmarks/forecast_runs.py again OUT          more judged runs of parity, decided later
    python benchmarks/forecast_runs.py fresh OUT          runs that judge the rule added after these

Each run is watched by `emergo.torch.watch` and written to OUT at once; finished runs are skipped,
so the command can be interrupted. All sets take under 40 minutes on one core. Afterwards the logs
are joined to one table:

    python benchmarks/forecast_runs.py join OUT TABLE.parquet
"""

import contextlib
import dataclasses
import json
import math
import pydoc_data.topics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import emergo.torch as et
from emergo.core.json import digest
from emergo.forecasting._drift import probe_scale
from emergo.measure import write_table

EVERY = 10
OTHERS = ("step", "loss", "threshold", "run", "job")  # columns of the table that are no probes
SHARE = 0.5  # a run has learned when its loss is below this share of the loss of a guess
LETTERS = " abcdefghijklmnopqrstuvwxyz.,()'\n"
TEXT_LEARNED = 1.2  # half of the loss from the letter before alone


@dataclasses.dataclass(frozen=True)
class Job:
    """One run. `size` and `other` are the sizes of the task, see the functions below."""

    family: str
    size: int
    other: int
    width: int
    heads: int
    layers: int
    rate: float
    batch: int
    steps: int
    seed: int
    shuffled: bool = False

    @property
    def identity(self) -> str:
        return digest(dataclasses.asdict(self))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        n, length, width = x.shape
        y = self.first(x)
        q, k, v = (
            f(y).view(n, length, self.heads, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """A Transformer on tokens; its answers are read at every position."""

    def __init__(self, job: Job, tokens: int, length: int, answers: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.embed = nn.Embedding(tokens, job.width)
        self.positions = nn.Parameter(0.1 * torch.randn(length, job.width))
        self.blocks = nn.ModuleList(Block(job.width, job.heads) for _ in range(job.layers))
        self.readout = nn.Linear(job.width, answers)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self.causal)
        return self.readout(x)


class Encoder(nn.Module):
    """Modular addition with PyTorch's own layers."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.embed = nn.Embedding(job.size + 1, job.width)
        self.positions = nn.Parameter(0.1 * torch.randn(3, job.width))
        layer = nn.TransformerEncoderLayer(
            job.width, job.heads, 4 * job.width, dropout=0.0, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, job.layers, enable_nested_tensor=False)
        self.readout = nn.Linear(job.width, job.size)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.readout(self.layers(self.embed(tokens) + self.positions))


Sample = Callable[[], tuple[Tensor, Tensor]]  # inputs, and labels with -100 where none is asked for
Task = tuple[nn.Module, Sample, float]  # also the threshold of the loss


def guess(classes: int) -> float:
    return SHARE * math.log(classes)


def periodic(job: Job, longest: int, base: Callable[[], Tensor], fixed: bool) -> Sample:
    """Sequences with periods of `longest` tokens, or of `longest / 2` to `longest`."""

    def sample() -> tuple[Tensor, Tensor]:
        period = torch.randint(longest if fixed else longest // 2, longest + 1, (job.batch, 1))
        place = torch.arange(2 * longest + 1)
        tokens = base().gather(1, place % period)
        # The first period cannot be known.
        return tokens[:, :-1], tokens[:, 1:].masked_fill(place[1:] < period, -100)

    return sample


def random_tokens(job: Job, fixed: bool) -> Sample:
    """Periods of up to `other` random tokens of `size` kinds."""
    base = lambda: torch.randint(job.size, (job.batch, job.other))  # noqa: E731
    return periodic(job, job.other, base, fixed)


def induction(job: Job, fixed: bool) -> Task:
    model = Transformer(job, job.size, 2 * job.other, job.size, True)
    return model, random_tokens(job, fixed), guess(job.size)


def addition(job: Job) -> Task:
    """a + b modulo `size`."""

    def sample() -> tuple[Tensor, Tensor]:
        pair = torch.randint(job.size, (job.batch, 2))
        labels = torch.full((job.batch, 3), -100)
        labels[:, 2] = pair.sum(1) % job.size
        return F.pad(pair, (0, 1), value=job.size), labels

    return Encoder(job), sample, guess(job.size)


def parity(job: Job) -> Task:
    """The parity of `other` among `size` bits, asked at the last position."""
    chosen = torch.randperm(job.size)[: job.other]

    def sample() -> tuple[Tensor, Tensor]:
        bits = torch.randint(2, (job.batch, job.size))
        labels = torch.full((job.batch, job.size + 1), -100)
        labels[:, -1] = bits[:, chosen].sum(1) % 2
        return F.pad(bits, (0, 1), value=2), labels

    return Transformer(job, 3, job.size + 1, 2, False), sample, guess(2)


def parity_mlp(job: Job) -> Task:
    chosen = torch.randperm(job.size)[: job.other]

    def sample() -> tuple[Tensor, Tensor]:
        bits = torch.randint(2, (job.batch, job.size))
        return 2.0 * bits - 1, bits[:, chosen].sum(1) % 2

    model = nn.Sequential(nn.Linear(job.size, job.width), nn.ReLU(), nn.Linear(job.width, 2))
    return model, sample, guess(2)


def gpt2(job: Job) -> Task:
    """Random tokens with random periods, as above, with the GPT-2 of Hugging Face."""
    from transformers import GPT2Config, GPT2LMHeadModel

    class Logits(nn.Module):
        def __init__(self, config: GPT2Config) -> None:
            super().__init__()
            self.model = GPT2LMHeadModel(config)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.model(input_ids=tokens).logits

    config = GPT2Config(
        vocab_size=job.size,
        n_positions=2 * job.other,
        n_embd=job.width,
        n_layer=job.layers,
        n_head=job.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Logits(config), random_tokens(job, fixed=False), guess(job.size)


def characters(job: Job) -> Task:
    """Passages of Python's help, repeated with random periods of up to `size` characters."""
    words = "".join(pydoc_data.topics.topics.values()).lower()
    text = torch.tensor([LETTERS.index(one) for one in words if one in LETTERS])

    def passages() -> Tensor:
        start = torch.randint(len(text) - job.size, (job.batch, 1))
        return text[start + torch.arange(job.size)]

    sample = periodic(job, job.size, passages, fixed=False)
    return Transformer(job, len(LETTERS), 2 * job.size, len(LETTERS), True), sample, TEXT_LEARNED


FAMILIES: dict[str, Callable[[Job], Task]] = {
    "induction": lambda job: induction(job, fixed=True),
    "induction, random periods": lambda job: induction(job, fixed=False),
    "modular addition": addition,
    "parity": parity,
    "parity, MLP": parity_mlp,
    "GPT-2": gpt2,
    "characters": characters,
}


def train(job: Job) -> pd.DataFrame:
    """Train and watch one run, until it has learned; return its log."""
    torch.manual_seed(job.seed)
    model, sample, threshold = FAMILIES[job.family](job)
    optimizer = torch.optim.Adam(model.parameters(), lr=job.rate)
    losses: list[float] = []
    rows: list[dict[str, float]] = []
    with contextlib.ExitStack() as stack:
        watch: Any = None
        if job.family != "parity, MLP":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            keep = lambda step, values: rows.append({"step": step, **values})  # noqa: E731
            watch = stack.enter_context(
                et.watch(model, f"{folder}/log.csv", every=EVERY, writers=[keep])
            )
        for step in range(job.steps):
            inputs, labels = sample()
            if job.shuffled:
                labels = labels[torch.randperm(len(labels))]
            loss = F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses = [*losses[1 - EVERY :], loss.item()]
            mean = sum(losses) / len(losses)
            if watch is not None:
                watch(loss=mean)
            elif step % EVERY == 0:
                rows.append({"step": step, "loss": mean})
            if len(rows) > 2 and all(row["loss"] <= threshold for row in rows[-2:]):
                break
    return pd.DataFrame(rows).assign(threshold=threshold)


# By set and family: (size, other, width, heads, layers, rate, batch). The two sets share no line
# and no seed.
CELLS: dict[str, dict[str, list[tuple[int, int, int, int, int, float, int]]]] = {
    "calibration": {
        "induction": [(8, 12, 32, 2, 2, 1e-3, 16), (12, 10, 24, 2, 2, 1.5e-3, 16)],
        "induction, random periods": [(8, 10, 32, 2, 2, 1.5e-3, 16), (4, 12, 32, 2, 2, 1e-3, 16)],
        "modular addition": [(17, 0, 32, 2, 1, 5e-4, 32), (11, 0, 32, 4, 1, 3e-4, 32)],
        "parity": [(12, 2, 32, 2, 1, 7e-4, 32), (9, 2, 32, 4, 1, 4e-4, 32)],
        "parity, MLP": [(16, 3, 64, 0, 0, 1e-3, 32), (24, 2, 64, 0, 0, 5e-4, 32)],
        "GPT-2": [(8, 12, 32, 2, 2, 1e-3, 16), (12, 8, 24, 2, 2, 2e-3, 16)],
        "characters": [(16, 0, 32, 2, 2, 1e-3, 16), (12, 0, 32, 4, 2, 2e-3, 16)],
    },
    "judged": {
        "induction": [
            (10, 11, 40, 2, 2, 8e-4, 16),
            (6, 14, 32, 4, 2, 1.2e-3, 16),
            (16, 9, 48, 4, 2, 6e-4, 16),
        ],
        "induction, random periods": [
            (6, 11, 40, 2, 2, 1.2e-3, 16),
            (10, 9, 32, 4, 2, 1.5e-3, 16),
            (5, 13, 24, 2, 2, 2e-3, 16),
        ],
        "modular addition": [
            (13, 0, 40, 2, 1, 4e-4, 32),
            (19, 0, 48, 4, 1, 6e-4, 32),
            (23, 0, 32, 2, 1, 8e-4, 48),
        ],
        "parity": [
            (10, 2, 40, 2, 1, 6e-4, 32),
            (14, 2, 32, 4, 1, 8e-4, 32),
            (11, 2, 24, 2, 2, 5e-4, 32),
        ],
        "parity, MLP": [
            (20, 3, 96, 0, 0, 1e-3, 32),
            (18, 3, 48, 0, 0, 1.5e-3, 32),
            (30, 2, 64, 0, 0, 7e-4, 32),
        ],
        "GPT-2": [
            (10, 11, 40, 2, 2, 1.2e-3, 16),
            (6, 10, 32, 4, 2, 1e-3, 16),
            (14, 9, 24, 2, 2, 1.5e-3, 16),
        ],
        "characters": [(14, 0, 40, 2, 2, 1.5e-3, 16), (18, 0, 32, 4, 2, 1.2e-3, 16)],
    },
}
# The judged runs had two forecasts for parity with a Transformer, too few for a judgement.
CELLS["again"] = {"parity": CELLS["judged"]["parity"]}
# Forecasts were changed after the judged runs were read, so new runs judge the change.
CELLS["fresh"] = {
    "induction": [(14, 10, 32, 2, 2, 1e-3, 16), (9, 12, 40, 4, 2, 9e-4, 16)],
    "modular addition": [(15, 0, 36, 2, 1, 5e-4, 32), (21, 0, 40, 4, 1, 7e-4, 32)],
    "parity": [(13, 2, 32, 2, 1, 6e-4, 32), (12, 2, 40, 4, 1, 5e-4, 32)],
    "parity, MLP": [(22, 3, 80, 0, 0, 1e-3, 32), (26, 2, 48, 0, 0, 6e-4, 32)],
    "GPT-2": [(9, 11, 32, 2, 2, 1.1e-3, 16), (12, 10, 40, 4, 2, 1e-3, 16)],
}
FIRST_SEED = {"calibration": 0, "judged": 100, "again": 200, "fresh": 300}
SEEDS = 4  # per line
SEEDS_AGAIN = 25
SEEDS_FRESH = 3
MORE_SEEDS = {"modular addition": 8, "parity, MLP": 10}  # for calibration; they train fastest
TWINS = {"calibration": 3, "judged": 5, "again": 0, "fresh": 0}  # shuffled runs per family


def jobs(kind: str) -> list[Job]:
    """List the runs of a set, so that every prefix holds all families."""
    found: list[tuple[int, Job]] = []
    for family, cells in CELLS[kind].items():
        count = {
            "calibration": MORE_SEEDS.get(family, SEEDS),
            "judged": SEEDS,
            "again": SEEDS_AGAIN,
            "fresh": SEEDS_FRESH,
        }[kind]
        seeds = range(FIRST_SEED[kind], FIRST_SEED[kind] + count)
        few = 700 if kind == "calibration" else 500
        steps, few = (4000, 4000) if family == "parity, MLP" else (1500, few)
        runs = [Job(family, *cell, steps, seed) for seed in seeds for cell in cells]
        twins = [dataclasses.replace(job, shuffled=True, steps=few) for job in runs[: TWINS[kind]]]
        found += enumerate(runs)
        found += ((2 * i + 1, twin) for i, twin in enumerate(twins))
    return [job for _, job in sorted(found, key=lambda each: each[0])]


def run_all(kind: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    waiting = jobs(kind)
    for i, job in enumerate(waiting):
        path = folder / f"{job.identity}.parquet"
        if path.exists():
            continue
        begun = time.process_time()
        log = train(job).assign(run=job.identity, job=json.dumps(dataclasses.asdict(job)))
        write_table(log, path)
        seconds = time.process_time() - begun
        print(f"{i + 1} of {len(waiting)}: {job.family}, {seconds:.0f} s", flush=True)


def join(folder: Path, path: Path) -> None:
    """Write the losses and probes of all logs as one table, with four digits."""
    tables = [pd.read_parquet(log) for log in sorted(folder.glob("*.parquet"))]
    table = pd.concat(tables, ignore_index=True)
    kept = [name for name in table if name in OTHERS or probe_scale(str(name)) is not None]
    table = table[kept]
    floats = table.select_dtypes("float").columns.drop("threshold")
    digits = table[floats].map(lambda number: float(f"{number:.4g}")).astype("float32")
    write_table(table.assign(**digits), path)


def main(kind: str, folder: str, path: str = "") -> None:
    torch.set_num_threads(1)
    if kind == "join":
        return join(Path(folder), Path(path))
    return run_all(kind, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
