"""The plateau of `Assembly` when all its maps grow, which the formula of the exponents leaves out.

    python -m benchmarks.growing_maps [GROUP...] [TABLE.csv]

`emergo.theory.assembly_plateau` gives all directions of the map from tokens to outputs one rate,
which does not change. Here the maps themselves are integrated, from a random start: some directions
are slower than others, and all maps grow. Attention stays one number, noise is the derived one, and
scores of positions and the MLP are left out. Groups are `screen`, `ranges`, `wide` and `published`.
Cells that TABLE.csv (by default results/growing-maps.csv) has are not integrated again. Its columns
add one effect after another: the formula, directions at fixed rates, growth, the skip connection,
and rows of different noise (under Adam).
results/expectations/growing-maps.md says what we expect. Takes half an hour on one core.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import emergo as em
from emergo.models import Assembly
from emergo.models._attention import sinusoids
from emergo.papers.experiments.exponents import (
    ADAM,
    CELL,
    PUBLISHED,
    SCREEN,
    SGD,
    Name,
    geometric_mean,
    law_of,
)
from emergo.store import read_records
from emergo.theory import THRESHOLD, assembly_plateau, assembly_rates

from .campaigns import found
from .exponents import CONSTANT, FOLDER, NO_POSITIONS, WHOLE, ranges, wide

TABLE = Path(__file__).parents[1] / "results" / "growing-maps.csv"
VARIANTS = (
    WHOLE,
    CONSTANT,
    "removed/content of constant size",
    "removed/indicator of constant size",
    NO_POSITIONS,
    "path/embedding",
    "path/skip connection",
)
WITH = {
    "directions": {"fixed": True, "entries": False},
    "growth": {"skip": False, "entries": False},
    "skip": {"entries": False},
    "entries": {},
}
"""Integrations, each with one effect more than the one before."""
LARGER = (
    f"sgd {WHOLE}, d to 24, T to 64",
    f"sgd {CONSTANT}, d to 24, T to 64",
    f"adam {WHOLE}, T to 128",
    f"adam {CONSTANT}, T to 128",
)
MANY_SEEDS = 8  # at width 32; wide maps need one, since their spectra hardly differ
WIDE = 128
# The largest change of a map and of the map from tokens to outputs in a step of the integration,
# relative to their sizes, and of the time.
GROWTH = 0.03
MOVE = 0.05
LATER = 0.02
STABLE = 0.4  # steps times a mean decay; the fastest of a spectrum is up to 4 times as fast
MOST = 20_000


class Maps(NamedTuple):
    """Parameters that a plateau depends on, in the order of the blocks of `assembly_rates`."""

    value: np.ndarray
    out: np.ndarray
    readout: np.ndarray
    content: np.ndarray  # the embedding of tokens
    query: np.ndarray
    query_bias: np.ndarray
    key: np.ndarray
    mark: np.ndarray  # the embedding of the indicator


def draw(model: Assembly, dim: int, rng: np.random.Generator) -> Maps:
    """Draw maps as `Assembly.init` does."""
    width = model.width

    def uniform(rows: int, columns: int, inputs: int) -> np.ndarray:
        return (rng.uniform(-1, 1, (rows, columns)) / np.sqrt(inputs)).astype(np.float32)

    kept = np.float32(np.sqrt((dim + 1) / (model.REFERENCE + 1)))
    return Maps(
        uniform(width, width, width),
        uniform(width, width, width),
        uniform(width, dim, width),
        uniform(dim, width, dim + 1) * (kept if model.keep_content else 1),
        uniform(width, width, width),
        uniform(1, width, width)[0],
        uniform(width, width, width),
        uniform(1, width, dim + 1)[0] * (kept if model.keep_mark else 1),
    )


def grown_plateau(
    model: Assembly,
    length: int,
    dim: int,
    learning_rate: float,
    optimizer: Name = SGD,
    batch: int = 32,
    seed: int = 0,
    fixed: bool = False,
    skip: bool = True,
    entries: bool = True,
) -> float:
    """Integrate the plateau of a model whose maps grow, in training steps.

    **Arguments:**

    - `model`: with an embedding, queries, three value maps and biases, and one head.
    - `fixed`: keep the rates of the map from tokens to outputs as they are at the start.
    - `skip`: if the model has a skip connection, the last token reaches the readout through it, and
      what the readout makes of it is an error. Not with `fixed`.
    - `entries`: under Adam, rows of a block that reads the stream have different noise.
    """
    skip = skip and bool(model.skip) and not fixed
    rng = np.random.default_rng(seed)
    maps = draw(model, dim, rng)
    start = maps
    target = rng.normal(size=(dim, dim)).astype(np.float32) / np.float32(np.sqrt(dim))
    bias = rng.uniform(-1, 1, model.width) / np.sqrt(dim + 1)
    place = np.asarray(sinusoids(length, model.width))[-1] * float(model.positions)
    stream = (place + bias).astype(np.float32)
    rates = assembly_rates(model, length, dim)
    blocks = (*rates.values, *rates.query, *rates.key)
    noises = [np.float32(block.noise / batch) for block in blocks]
    if entries:
        noises = [
            noise if block.by_row is None else (block.by_row[:, None] / batch).astype(np.float32)
            for noise, block in zip(noises, blocks, strict=True)
        ]
    root = np.sqrt(model.width)
    others = length - 1

    def logit_of(maps: Maps) -> float:
        query = stream @ maps.query + maps.query_bias
        return float(query @ (maps.mark @ maps.key) / root)

    first = logit_of(maps)
    path = maps.content @ maps.value @ maps.out @ maps.readout
    time = 0.0
    for _ in range(MOST):
        weight = 1 / (1 + others * np.exp(first - logit_of(maps)))
        error = target - weight * path
        square = float(np.sum(path**2))
        loss = ((1 - weight) ** 2 * square / others + float(np.sum(error**2))) / dim
        if loss < THRESHOLD:
            return float(time)
        by_path = (weight * error - (1 - weight) ** 2 * path / others) / dim
        by_weight = float(np.sum(path * error)) + (1 - weight) * square / others
        by_logit = weight * (1 - weight) * by_weight / dim / root
        left = start if fixed else maps
        gradient = gradients(left, maps, stream, by_path, np.float32(by_logit))
        if skip:
            by_last = -(maps.content @ maps.readout) / dim
            gradient = gradient._replace(
                readout=gradient.readout + maps.content.T @ by_last,
                content=gradient.content + by_last @ maps.readout.T,
            )
        if optimizer == ADAM:
            scaled = (g / np.sqrt(g**2 + n) for g, n in zip(gradient, noises, strict=True))
            gradient = Maps(*scaled)
        sizes = [np.linalg.norm(g) / np.linalg.norm(m) for g, m in zip(gradient, maps, strict=True)]
        step = min(GROWTH / max(sizes) / learning_rate, max(LATER * time, 1.0))
        if skip:
            # The answer to the last token decays at this rate, faster than all else.
            decays = [np.sum(m**2) / min(m.shape) for m in (maps.content, maps.readout)]
            if optimizer == ADAM:
                least = [np.sqrt(np.min(noises[i])) for i in (2, 3)]
                decays = [x / noise for x, noise in zip(decays, least, strict=True)]
            step = min(step, STABLE * dim / sum(decays) / learning_rate)
        if fixed:
            moved = linear_move(start, gradient)
            reach = MOVE * np.sqrt(dim) / float(np.linalg.norm(moved)) / learning_rate
            step = min(step, reach)
            path = path + np.float32(learning_rate * step) * moved
        factor = np.float32(learning_rate * step)
        maps = Maps(*(m + factor * g for m, g in zip(maps, gradient, strict=True)))
        if not fixed:
            path = maps.content @ maps.value @ maps.out @ maps.readout
        time += step
    return float("nan")


def gradients(
    left: Maps, maps: Maps, stream: np.ndarray, by_path: np.ndarray, by_logit: np.floating
) -> Maps:
    """Return minus the gradient of the loss, with value maps taken from `left`."""
    into = left.content @ left.value
    after = left.out @ left.readout
    query = stream @ maps.query + maps.query_bias
    key = maps.mark @ maps.key
    return Maps(
        left.content.T @ (by_path @ after.T),
        into.T @ (by_path @ left.readout.T),
        (into @ left.out).T @ by_path,
        by_path @ (left.value @ after).T,
        by_logit * np.outer(stream, key),
        by_logit * key,
        by_logit * np.outer(maps.mark, query),
        by_logit * (maps.key @ query),
    )


def linear_move(maps: Maps, moves: Maps) -> np.ndarray:
    """Return how the map from tokens to outputs moves, to first order, as value maps move."""
    into = maps.content @ maps.value
    after = maps.out @ maps.readout
    return (
        moves.content @ (maps.value @ after)
        + maps.content @ (moves.value @ after)
        + into @ (moves.out @ maps.readout)
        + (into @ maps.out) @ moves.readout
    )


class Part(NamedTuple):
    """A study, and the model that is taken for its runs."""

    study: em.Study
    model: Any


def groups() -> dict[str, dict[str, Part]]:
    screen = SCREEN.own()
    names = [f"{name} {variant}" for name in (SGD, ADAM) for variant in VARIANTS]
    trained = {
        "screen": {name: screen[name] for name in names},
        "ranges": {name: ranges()[name].study for name in LARGER},
        "wide": {name: part.study for name, part in wide().items()},
    }
    parts = {
        group: {name: Part(study, study.base.model) for name, study in studies.items()}
        for group, studies in trained.items()
    }
    published = ("Fig. 15, SGD", "Fig. 15, Adam")
    parts["published"] = {name: Part(*PUBLISHED[name][:2]) for name in published}
    return parts


def cells_of(name: str, part: Part, known: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the derived and integrated plateaus of each cell of a part that is not known."""
    base = part.study.base
    rate = float(base.optimizer.learning_rate)
    optimizer: Name = ADAM if base.optimizer.name == ADAM else SGD
    seeds = MANY_SEEDS if part.model.width < WIDE else 1
    axes = {**part.study.grid, **part.study.zip}
    for length in axes["length"]:
        for dim in axes["dim"]:
            same = (known["part"] == name) & (known["length"] == length) & (known["dim"] == dim)
            if same.any():
                continue
            row: dict[str, Any] = {"part": name, "length": length, "dim": dim}
            row["formula"] = assembly_plateau(part.model, length, dim, rate, optimizer, base.batch)
            for label, options in WITH.items():
                if label == "entries" and optimizer == SGD:
                    row[label] = row["skip"]
                    continue
                row[label] = geometric_mean(
                    np.array(
                        [
                            grown_plateau(
                                *(part.model, length, dim, rate, optimizer, base.batch),
                                seed=seed,
                                **options,
                            )
                            for seed in range(seeds)
                        ]
                    )
                )
            yield row


def exponents_of(cells: pd.DataFrame, records: list[Any], part: Part) -> dict[str, Any]:
    """Return measured and integrated exponents of a part, and measured plateaus over them."""
    table = max((found(part.study, one).table for one in records), key=len)
    law = law_of(table) if len(table) else None
    row: dict[str, Any] = {"runs": len(table)}
    for term in CELL:
        row[term] = law.exponents[term] if law else float("nan")
        ends = law.ci95[term] if law else (float("nan"), float("nan"))
        row |= dict(zip((f"{term}_low", f"{term}_high"), ends, strict=True))
    for label in ("formula", *WITH):
        own = law_of(cells.rename(columns={label: "plateau"}))
        row |= {f"{term}_{label}": own.exponents[term] if own else np.nan for term in CELL}
        if len(table):
            means = table[~table["censored"]].groupby(CELL)["plateau"].agg(geometric_mean)
            ratio = (means / cells.set_index(CELL)[label]).dropna()
            row |= {f"least_over_{label}": ratio.min(), f"most_over_{label}": ratio.max()}
    return row


def run(chosen: list[str], target: Path) -> None:
    columns = ["part", *CELL, "formula", *WITH]
    known = pd.read_csv(target) if target.exists() else pd.DataFrame(columns=columns)
    records = [read_records(), read_records(FOLDER)]
    rows = []
    parts_of = groups()
    for group in chosen:
        for name, part in parts_of[group].items():
            for row in cells_of(name, part, known):
                known = pd.concat([known, pd.DataFrame([row])], ignore_index=True)
                known.to_csv(target, index=False, float_format="%.4g")
            cells = known[known["part"] == name]
            rows.append({"part": name, **exponents_of(cells, records, part)})
    print(pd.DataFrame(rows).round(2).to_string(index=False))


if __name__ == "__main__":
    words = sys.argv[1:]
    path = Path(words.pop()) if words and words[-1].endswith(".csv") else TABLE
    run(words or list(groups()), path)
