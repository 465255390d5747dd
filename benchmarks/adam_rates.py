"""By what Adam divides gradients on a plateau, and what this adds to the exponent of d.

    python -m benchmarks.adam_rates [SEEDS] [TABLE.csv]

Trains the one-layer Transformer of `emergo/exponents` with and without an embedding of constant
size under Adam with two β₂, and stops at three points of its plateau. There it measures how fast
the map from tokens to outputs and the logit of the relevant token move for a given gradient. The
ratio of this rate to the derived one is a product of factors, in this order:

- `sizes`: the maps have other sizes than on average at the start.
- `noise`: the mean square of the gradients of each block is not the derived one.
- `entries`: it differs between the entries of a block.
- `memory`: √v̂ is not the root mean square of present gradients.
- `tails`: m̂/√v̂ moves by more or less than the mean gradient over √v̂, since v̂ contains the
  gradient that it divides.

Minus half of the slope of log rate in log d is what a factor adds to the exponent of d.
results/expectations/growing-maps.md says what we expect. Takes ten minutes on two cores.
"""

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array

from emergo.models import Assembly
from emergo.models._attention import sinusoids
from emergo.papers.experiments.exponents import ADAM, RATES, geometric_mean
from emergo.papers.transformers import TASK
from emergo.theory import assembly_rates

TABLE = Path(__file__).parents[1] / "results" / "adam-rates.csv"
SEEDS = 3
WIDTH = 32
LENGTH = 32
DIMS = (4, 8, 16)
BATCH = 32
MODELS = {
    "Transformer": Assembly(width=WIDTH),
    "embedding of constant size": Assembly(width=WIDTH, keep_content=1.0, keep_mark=1.0),
}
MEMORIES = (0.9, 0.999)
B1 = 0.9
EPSILON = 1e-8
POINTS = (0.15, 0.3, 0.5)  # of the plateau
CHUNK = 10
LIMIT = 400  # chunks
FROZEN = 64  # batches at a point
WARM = 30  # of them, until m has forgotten the gradients before
SHIFT = 0.01  # a signal in units of the root mean square of gradients
FACTORS = ("sizes", "noise", "entries", "memory", "tails")


class State(NamedTuple):
    params: Any
    mean: Any
    square: Any
    step: Array


class Setting(NamedTuple):
    """A model on one dim, and β₂; static."""

    model: Assembly
    dim: int
    b2: float


def task_of(dim: int) -> Any:
    return TASK.replace(length=LENGTH, dim=dim)


def gradient_of(setting: Setting, params: Any, key: Array, truth: Any) -> Any:
    task = task_of(setting.dim)
    batch = task.batch(key, BATCH, truth)

    def loss(params: Any) -> Array:
        return jnp.mean(task.loss(setting.model.apply(params, batch.inputs), batch))

    return jax.grad(loss)(params)


def moments(setting: Setting, state: State, gradient: Any) -> State:
    mean = jax.tree.map(lambda m, g: B1 * m + (1 - B1) * g, state.mean, gradient)
    square = jax.tree.map(
        lambda v, g: setting.b2 * v + (1 - setting.b2) * g**2, state.square, gradient
    )
    return State(state.params, mean, square, state.step + 1)


def direction(setting: Setting, state: State) -> Any:
    """Return m̂/√v̂."""
    first = 1 - B1**state.step
    second = 1 - setting.b2**state.step
    return jax.tree.map(
        lambda m, v: m / first / (jnp.sqrt(v / second) + EPSILON), state.mean, state.square
    )


@functools.partial(jax.jit, static_argnums=0)
def chunk(setting: Setting, state: State, key: Array, truth: Any) -> tuple[State, Array]:
    """Train for some steps, and return the test loss."""

    def one(state: State, _: None) -> tuple[State, None]:
        drawn = jax.random.fold_in(key, state.step)
        state = moments(setting, state, gradient_of(setting, state.params, drawn, truth))
        rate = RATES[ADAM][0]
        moved = jax.tree.map(lambda p, u: p - rate * u, state.params, direction(setting, state))
        return state._replace(params=moved), None

    state, _ = jax.lax.scan(one, state, None, CHUNK)
    task = task_of(setting.dim)
    batch = task.batch(jax.random.key(999), 1024, truth)
    return state, jnp.mean(task.loss(setting.model.apply(state.params, batch.inputs), batch))


def plateau_of(setting: Setting, seed: int) -> tuple[list[State], Any]:
    """Train until the threshold; return the states after each chunk, and the map to learn."""
    key = jax.random.key(seed)
    task = task_of(setting.dim)
    truth = task.truth(jax.random.fold_in(key, 1))
    params = setting.model.init(jax.random.fold_in(key, 2), task.spec)
    zero = jax.tree.map(jnp.zeros_like, params)
    states = [State(params, zero, zero, jnp.int32(0))]
    for _ in range(LIMIT):
        state, loss = chunk(setting, states[-1], jax.random.fold_in(key, 3), truth)
        states.append(state)
        if loss < 0.1:
            return states, truth
    raise RuntimeError(f"{setting} did not learn in {LIMIT * CHUNK} steps")


def blocks(params: Any, quantity: str) -> list[Array]:
    """Return the blocks of a tree like the parameters, in the order of `assembly_rates`."""
    if quantity == "map":
        return [
            params.value.weight,
            params.out.weight,
            params.readout.weight,
            params.embed.weight[1:],
        ]
    return [params.query.weight, params.query.bias, params.key, params.embed.weight[0]]


@functools.partial(jax.jit, static_argnums=0)
def measure(setting: Setting, state: State, key: Array, truth: Any) -> dict[str, Any]:
    """Return, for both quantities, sums over each block that differ by one factor each."""
    model = setting.model

    def along_map(params: Any) -> Array:
        path = model.apply(params, jnp.zeros((1, LENGTH, setting.dim + 1))).value_path
        assert path is not None
        return jnp.sum(path[1:] * truth.weights.T) / jnp.linalg.norm(truth.weights)

    def logit(params: Any) -> Array:
        stream = sinusoids(LENGTH, model.width)[-1] + params.embed.bias
        query = stream @ params.query.weight + params.query.bias
        return query @ (params.embed.weight[0] @ params.key) / jnp.sqrt(model.size)

    keys = jax.random.split(key, FROZEN)
    draws = jax.lax.map(lambda one: gradient_of(setting, state.params, one, truth), keys)
    second = jax.tree.map(lambda g: jnp.mean(g**2, 0), draws)
    # The estimate on average over the batches that `mean_direction` averages.
    kept = jnp.mean(setting.b2 ** (1.0 + jnp.arange(WARM, FROZEN)))
    recalled = jax.tree.map(
        lambda v, s: kept * v / (1 - setting.b2**state.step) + (1 - kept) * s, state.square, second
    )

    def mean_direction(shift: Any) -> Any:
        """Return the mean of m̂/√v̂ over batches at fixed parameters, with a signal added."""

        def one(state: State, gradient: Any) -> tuple[State, Any]:
            state = moments(setting, state, jax.tree.map(jnp.add, gradient, shift))
            return state, direction(setting, state)

        _, directions = jax.lax.scan(one, state, draws)
        return jax.tree.map(lambda u: jnp.mean(u[WARM:], 0), directions)

    before = mean_direction(jax.tree.map(jnp.zeros_like, state.params))
    found = {}
    for name, function in (("map", along_map), ("logit", logit)):
        slope = jax.grad(function)(state.params)
        own = zip(blocks(slope, name), blocks(second, name), strict=True)
        # A signal that is small in each entry, relative to the noise of its block.
        ratio = max_of([jnp.max(jnp.abs(j)) / jnp.sqrt(jnp.mean(s)) for j, s in own])
        size = SHIFT / ratio
        after = mean_direction(jax.tree.map(lambda j, size=size: size * j, slope))
        moved = jax.tree.map(lambda a, b, size=size: (a - b) / size, after, before)
        rows = zip(*(blocks(x, name) for x in (slope, second, recalled, moved)), strict=True)
        found[name] = [
            {
                "square": jnp.sum(j**2),
                "noise": jnp.sum(j**2) / jnp.sqrt(jnp.mean(s)),
                "entries": jnp.sum(j**2 / jnp.sqrt(s + 1e-20)),
                "memory": jnp.sum(j**2 / jnp.sqrt(v + 1e-20)),
                "tails": jnp.sum(j * u),
            }
            for j, s, v, u in rows
        ]
    kurtosis = jax.tree.map(lambda g, s: jnp.mean(g**4, 0) / (s**2 + 1e-30), draws, second)
    found["kurtosis"] = [
        jnp.mean(one) for name in ("map", "logit") for one in blocks(kurtosis, name)
    ]
    return found


def max_of(values: list[Array]) -> Array:
    return jnp.max(jnp.stack(values))


def factors_of(setting: Setting, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    rates = assembly_rates(setting.model, LENGTH, setting.dim)
    derived = {"map": [(block.rate, block.noise) for block in rates.values]}
    derived["logit"] = [
        (block.rate * other / rates.size, block.noise)
        for blocks_of, other in ((rates.query, rates.key_norm), (rates.key, rates.query_norm))
        for block in blocks_of
    ]
    for name, pairs in derived.items():
        sums = found[name]
        chain = [sum(rate / np.sqrt(noise / BATCH) for rate, noise in pairs)]
        noises = [np.sqrt(noise / BATCH) for _, noise in pairs]
        chain.append(sum(float(s["square"]) / n for s, n in zip(sums, noises, strict=True)))
        chain += [sum(float(s[factor]) for s in sums) for factor in FACTORS[1:]]
        row: dict[str, Any] = {"quantity": name}
        row |= {factor: chain[i + 1] / chain[i] for i, factor in enumerate(FACTORS)}
        yield row


def table(seeds: int) -> pd.DataFrame:
    """Return the factors of every model, dim, β₂, seed and point of the plateau."""
    rows = []
    for name, model in MODELS.items():
        for b2 in MEMORIES:
            for dim in DIMS:
                setting = Setting(model, dim, b2)
                for seed in range(seeds):
                    states, truth = plateau_of(setting, seed)
                    for point in POINTS:
                        state = states[round(point * (len(states) - 1))]
                        key = jax.random.fold_in(jax.random.key(seed), 4)
                        found = measure(setting, state, key, truth)
                        labels = {"model": name, "b2": b2, "dim": dim, "seed": seed}
                        labels |= {"point": point, "steps": CHUNK * (len(states) - 1)}
                        labels["kurtosis"] = float(np.mean(found["kurtosis"]))
                        rows += [labels | row for row in factors_of(setting, found)]
    return pd.DataFrame(rows)


def additions(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what each factor adds to the exponent of d, with 95% intervals over seeds."""
    found = []
    for (model, b2), own in rows.groupby(["model", "b2"], sort=False):
        total: Any = 0.0
        for factor in FACTORS:
            added: Any = 0.0
            for quantity in ("map", "logit"):
                part = own[own["quantity"] == quantity]
                logs = part.assign(log=np.log(part[factor])).pivot_table("log", "seed", "dim")
                slopes = np.polyfit(np.log(DIMS), logs[list(DIMS)].to_numpy().T, 1)[0]
                added = added - slopes / 2
                row = {"model": model, "b2": b2, "factor": factor, "quantity": quantity}
                row |= {f"at {dim}": geometric_mean(np.exp(logs[dim])) for dim in DIMS}
                found.append(row | interval(-slopes / 2))
            total = total + added
        found.append({"model": model, "b2": b2, "factor": "all", "quantity": "both"})
        found[-1] |= interval(total)
    return pd.DataFrame(found)


def interval(values: np.ndarray) -> dict[str, float]:
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    middle = float(np.mean(values))
    return {"adds": middle, "low": middle - half, "high": middle + half}


if __name__ == "__main__":
    words = sys.argv[1:]
    target = Path(words.pop()) if words and words[-1].endswith(".csv") else TABLE
    rows = table(int(words[0]) if words else SEEDS)
    by_cell = rows.groupby(["model", "b2", "dim"], sort=False)[["steps", "kurtosis"]].mean()
    print(by_cell.round(1).to_string())
    result = additions(rows)
    print(result.round(2).to_string(index=False))
    result.to_csv(target, index=False, float_format="%.3g")
