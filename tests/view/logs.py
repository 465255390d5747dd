"""Logs as `emergo.torch.watch` writes them: two layers of four heads, one of which becomes an
induction head where the loss falls."""

import math
from pathlib import Path

import numpy as np

HEADS = [(layer, head) for layer in range(2) for head in range(4)]
EVERY = 20


def header() -> list[str]:
    names = ["step", "loss", "eval_loss"]
    for kind in ("entropy", "largest", "induction_head", "previous_token_head"):
        names += [f"{kind}_{layer}_{head}" for layer, head in HEADS]
    for kind in ("gradient_query_key", "agreement_query_key"):
        names += [f"{kind}_{layer}" for layer in range(2)]
    return names


def row(step: int, falls: float) -> list[float]:
    """Return the row of one step; every fifth has an evaluation."""
    share = 1 / (1 + math.exp(-(step - falls) / 80))
    values: dict[str, float] = {"step": step, "loss": 2 - 1.8 * share}
    if step % (5 * EVERY) == 0:
        values["eval_loss"] = 2.1 - 1.8 * share
    for layer, head in HEADS:
        mine = {"induction_head": (1, 2), "previous_token_head": (0, 3)}
        for kind in ("largest", "induction_head", "previous_token_head"):
            grows = (layer, head) == mine.get(kind, (1, 2))
            values[f"{kind}_{layer}_{head}"] = 0.1 + 0.8 * share * grows
        values[f"entropy_{layer}_{head}"] = 3 - 2 * values[f"largest_{layer}_{head}"]
    for layer in range(2):
        values[f"gradient_query_key_{layer}"] = 0.1 + share
        values[f"agreement_query_key_{layer}"] = 0.3 * share + 0.1 * math.sin(step)
    return [values.get(name, math.nan) for name in header()]


def line(values: list[float]) -> str:
    return ",".join("" if math.isnan(value) else f"{value:.12g}" for value in values) + "\n"


def write_log(path: Path, falls: float = 1000.0, last: int = 1500) -> None:
    rows = [line(row(step, falls)) for step in np.arange(0, last + 1, EVERY).tolist()]
    path.write_text(",".join(header()) + "\n" + "".join(rows))


def add_rows(path: Path, first: int, last: int, falls: float = 1000.0) -> None:
    with path.open("a") as file:
        file.writelines(line(row(step, falls)) for step in range(first, last + 1, EVERY))
