r"""The plateau of [`emergo.models.Assembly`][] under SGD and Adam, with nothing fitted.

While attention is small, a model is its map from tokens to outputs, of which $v$ points along the
target, and the logit of the relevant token, $\Delta a = q\cdot k/\sqrt n$. Every matrix of
parameters (a *block*) that a step moves has a rate: how fast it moves the map, or $q$, or $k$, for
a given gradient of the map or the logit. Under SGD these rates follow from the sizes of the initial
maps. Under Adam each rate is divided by the size of the block's gradient, which is signal and
noise. `docs/theory.md` derives both.
"""

from typing import Literal, NamedTuple

import numpy as np

from ..core.errors import InputError
from ..models import Assembly
from ._flow import THRESHOLD

GAIN = 1 / 3
"""The share of a squared norm that a square map keeps at PyTorch's initial scale."""
THROUGH_MLP = (1 / 18, 5 / 18)
"""Without a skip connection: the share of a squared norm that passes the MLP, and the rate through
the MLP's own maps over that of one map before it."""


class Block(NamedTuple):
    """Parameters through which a quantity moves.

    - `rate`: how fast it moves for a unit gradient of the quantity, under SGD.
    - `entries`: the number of parameters that carry the signal.
    - `noise`: the variance of the gradient of one parameter over samples.
    - `by_row`: the same for each row of a block that reads the stream, whose sinusoids differ.
    """

    rate: float
    entries: float
    noise: float
    by_row: np.ndarray | None = None


class Rates(NamedTuple):
    """What a model is on its plateau.

    - `values`: the blocks of the map from tokens to outputs.
    - `query`, `key`: the blocks of q and of k; the rate is per unit of the other vector.
    - `size`: n in the logit $q\\cdot k/\\sqrt n$.
    - `query_norm`, `key_norm`: the initial squared norms of q and k.
    """

    values: tuple[Block, ...]
    query: tuple[Block, ...]
    key: tuple[Block, ...]
    size: float
    query_norm: float
    key_norm: float


def assembly_rates(
    model: Assembly,
    length: int,
    dim: int,
    fixed: bool = False,
    tokens: float = 1.0,
    marks: float = 1.0,
) -> Rates:
    """Return the rates of a model at its start, to leading order in its width.

    **Arguments:**

    - `model`: the switches; one head.
    - `length`, `dim`: T and d.
    - `fixed`: the relevant token stands at a fixed position, whose sinusoid marks it in the place
      of the indicator.
    - `tokens`, `marks`: the root of the mean squared norm of a token, and the indicator.
    """
    if model.heads != 1:
        raise InputError(f"rates are derived for one head, got {model.heads}")
    width = model.width
    fan_in = dim + 1
    embed = float(model.embed)
    biases = float(model.biases)
    # Squared norms of a token of norm 1 and of the indicator in the stream, and the number of
    # entries of the stream that carry them.
    size_of = {
        switch: width * GAIN / (model.REFERENCE + 1 if switch else fan_in)
        for switch in (False, True)
    }
    content = (size_of[model.keep_content > 0] if embed else 1.0) * tokens**2
    mark = (size_of[model.keep_mark > 0] if embed else 1.0) * marks**2
    content_entries = width if embed else dim
    mark_entries = width if embed else 1
    constant = embed * biases * GAIN / fan_in  # variance of an entry of the stream's bias
    places = _places(length, width) * float(model.positions)
    mean_place = float(np.mean(np.mean(places, axis=0) ** 2))
    spread = places - np.mean(places, axis=0)
    covariance = spread.T @ spread / length
    place_entry = float(np.mean(places[-1] ** 2))
    if fixed:
        mark = float(np.trace(covariance))

    # Gradients with respect to outputs have squared norm 1 on the plateau; `back[i]` is the
    # variance of one entry after i maps, from the outputs back to the stream.
    maps = round(float(model.maps))
    passed, own = (1.0, 0.0)
    if model.mlp and not model.skip:
        passed, own = THROUGH_MLP
    back = [passed * GAIN ** (i + 1) / width * float(model.scale) ** 2 for i in range(maps)]
    entry = content / content_entries
    averaged = mean_place + constant + entry / length  # of the attended stream
    forward = [averaged]  # variance of an entry after i maps, with the bias of the last
    for _ in range(maps - 1):
        forward.append(GAIN * forward[-1] + biases * GAIN / width)
    values = []
    for i in range(maps):
        last = i == maps - 1
        rate = content * GAIN ** (maps - 1) * (1.0 if last else passed)
        rate *= passed if last else 1.0
        rows = content_entries if i == 0 else width
        after = 1 / dim if last else back[maps - 2 - i]
        by_row = forward[i] + np.zeros(width)
        if i == 0:
            by_row += np.mean(places, axis=0) ** 2 - mean_place
        if last:
            by_row += float(model.skip) * (places[-1] ** 2 + constant + entry)
        by_row *= after
        values.append(Block(rate, rows * (dim if last else width), float(np.mean(by_row)), by_row))
    if own:
        values.append(
            Block(content * GAIN ** (maps - 1) * own / 9, width * width, values[-1].noise)
        )
    if embed:
        from_skip = float(model.skip) * back[0]
        noise = (from_skip + back[maps - 1] / length) / dim * tokens**2
        values.append(Block(passed * GAIN**maps * tokens**2, dim * width, noise))

    # The gradient of the score of token t fluctuates with its token and its position, and enters
    # the gradient of the keys times the stream at t.
    reads = back[maps - 1]
    by_content = reads * content
    by_place = reads * float(np.trace(covariance))
    crossed = (by_content * float(np.trace(covariance)) / width + by_place * entry) / length
    own_content = by_content * entry / length
    whole = float(np.sum(covariance**2)) / width * reads + crossed + own_content
    seen = whole if embed else whole - own_content - by_place * entry / length
    seen += (by_content + by_place) * mark / mark_entries / length**2
    query_entry = place_entry + constant
    if model.queries:
        size = float(model.size)
        query_norm = GAIN * (width * query_entry + biases) * size / width
        key_norm = GAIN * mark * size / width
        mean_query = query_norm / size + GAIN * entry
        noise = (query_entry + entry) * GAIN * whole / size
        by_row = noise + (places[-1] ** 2 - place_entry) * GAIN * whole / size
        query = [Block(width * query_entry, width * size, noise, by_row)]
        if biases:
            query.append(Block(biases, size, GAIN * whole / size))
        # Rows differ in what the sinusoids of one row have in common with those of all rows.
        own_place = np.sum(covariance**2, axis=0) * reads
        own_place += by_content * np.diag(covariance) / length
        by_row = (seen + own_place - np.mean(own_place)) * mean_query / size
        key = [Block(mark, mark_entries * size, seen * mean_query / size, by_row)]
        through = GAIN
    else:
        query_norm, key_norm, size, through = 0.0, mark, 1.0, 1.0
        mean_query = 0.0
        query = [Block(1.0, mark_entries, seen)]
        key = []
    if embed:
        noise = back[0] * float(model.skip) / length + reads / length**2
        noise += (by_content + by_place) * GAIN * mean_query / length**2
        key.append(Block(through * marks**2, width, noise * marks**2))
    return Rates(tuple(values), tuple(query), tuple(key), size, query_norm, key_norm)


def assembly_plateau(
    model: Assembly,
    length: int,
    dim: int,
    learning_rate: float,
    optimizer: Literal["sgd", "adam"] = "sgd",
    batch: int = 32,
    threshold: float = THRESHOLD,
    fixed: bool = False,
    tokens: float = 1.0,
    marks: float = 1.0,
    targets: float = 1.0,
    epsilon: float = 0.0,
) -> float:
    """Integrate the plateau of a model in training steps; NaN if it does not end in 10^9 steps.

    **Arguments:**

    - `model`: the switches; one head.
    - `length`, `dim`: T and d of single-location regression with an indicator, B = 1, p = 0.
    - `batch`: sequences per step; matters under Adam only.
    - `threshold`: the share of the initial loss at which the plateau ends.
    - `fixed`, `tokens`, `marks`: as in [`emergo.theory.assembly_rates`][].
    - `targets`: the factor by which targets are multiplied.
    - `epsilon`: Adam's ε.
    """
    from scipy.integrate import solve_ivp  # here, because it is slow to import

    rates = assembly_rates(model, length, dim, fixed, tokens, marks)
    root = targets * np.sqrt(dim)
    others = length - 1

    def attention(state: np.ndarray) -> float:
        logit = np.clip(state[3] / np.sqrt(rates.size), -30, 60)
        return float(1 / (1 + others * np.exp(-logit)))

    def speed(blocks: tuple[Block, ...], gradient: float, factor: float = 1.0) -> float:
        if optimizer == "sgd":
            return learning_rate * sum(block.rate for block in blocks)
        total = 0.0
        for block in blocks:
            signal = gradient**2 * factor * block.rate / block.entries
            noise = block.noise * targets**2 / batch
            total += block.rate / (np.sqrt(signal + noise + 1e-30) + epsilon)
        return learning_rate * total

    def velocity(_: float, state: np.ndarray) -> list[float]:
        v, query, key, product = state
        weight = attention(state)
        noise = (1 - weight) * v / (dim * others)
        by_map = weight * (root - weight * v) / dim - (1 - weight) * noise
        by_logit = weight * (1 - weight) * (v * (root - weight * v) / dim + v * noise)
        pull = by_logit / np.sqrt(rates.size)
        to_query = speed(rates.query, pull, max(key, 0)) * pull
        to_key = speed(rates.key, pull, max(query, 0)) * pull
        return [
            by_map * speed(rates.values, by_map),
            2 * to_query * product,
            2 * to_key * product,
            to_query * key + to_key * query,
        ]

    def remaining(_: float, state: np.ndarray) -> float:
        v, weight = state[0], attention(state)
        loss = (1 - weight) ** 2 * v**2 / others + (weight * v - root) ** 2
        return loss / root**2 - threshold

    remaining.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
    start = [0.0, rates.query_norm, rates.key_norm, 0.0]
    solution = solve_ivp(velocity, (0, 1e9), start, "LSODA", events=remaining, rtol=1e-6, atol=1e-9)
    assert solution.t_events is not None, "`events` was given"
    ends = solution.t_events[0]
    return float(ends[0]) if len(ends) else float("nan")


def _places(length: int, width: int) -> np.ndarray:
    angle = np.arange(length)[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, width)
