"""The floor: what one training step of one run must do, whatever a program does, and the time that
this takes at least.

Work is counted by classes of kernels, each with its floating-point operations and the bytes that it
must move through the memory of a device. Classes run one after another, and within a class the
longer of the two decides (the roofline).
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.flows import median_seconds
from emergo.models import MinimalAttention, Transformer
from emergo.tasks import Recall
from emergo.training import Config, Precision
from emergo.training._program import products


class Work(NamedTuple):
    """What a class of kernels must do in one step of one run."""

    operations: float  # floating-point, of matrix products: two for a multiply and add
    bytes: float  # every input read once, every output written once

    def seconds(self, rate: float, bandwidth: float) -> float:
        return max(self.operations / rate, self.bytes / bandwidth)


def scores_read_stream(model: Transformer) -> bool:
    """Return True if scores are inner products of a query with the stream itself."""
    return model.positions != "rope" and model.attention != "positional"


def floor_work(config: Config, rate: float, bandwidth: float) -> dict[str, Work]:
    """The work of a step, by class: `products`, `attention`, `optimizer` and `data`; of several
    ways to the same numbers, by that which takes least time on a device that does `rate` operations
    and moves `bandwidth` bytes a second.

    Products are those left after folding, each with the two of its backward pass, but where the
    gradient is known to be of few vectors, and of tokens, which have none; what is applied to every
    number of an array (biases, ReLU, skip connections) is done on the way. The engine plans with
    what its programs hold; a program that does more than it must has a smaller share.
    """
    if isinstance(config.model, Transformer):
        # words are looked up in tables of maps
        model = config.model
        words = isinstance(config.task, Recall)
        can_fold = (
            model.norm != "pre" and scores_read_stream(model) and model.layers > 1 and not words
        )
        ways = itertools.product((True, False), (True, False) if can_fold else (False,))
        works = (_transformer(config, model, formed, folded) for formed, folded in ways)
        work = min(
            works, key=lambda work: sum(each.seconds(rate, bandwidth) for each in work.values())
        )
    elif isinstance(config.model, MinimalAttention) and config.model.layers == 1:
        work = _minimal(config, config.model)
    else:
        raise TypeError(f"the floor of {config.model!r} is not known")
    return work | {"optimizer": _optimizer(config)}


def floor_seconds(config: Config, rate: float, bandwidth: float) -> float:
    """The least time of a step of one run on such a device."""
    return sum(
        work.seconds(rate, bandwidth) for work in floor_work(config, rate, bandwidth).values()
    )


def _size(precision: Precision) -> int:
    """Bytes of a number that enters a product."""
    return {"bf16": 2, "tf32": 4, "fp32": 4, "fp64": 8}[precision]


def _once(maps: Sequence[tuple[float, float, float]], size: int) -> Work:
    operations = sum(2 * rows * inner * columns for rows, inner, columns in maps)
    numbers = sum(rows * inner + inner * columns + rows * columns for rows, inner, columns in maps)
    return Work(operations, numbers * size)


def _optimizer(config: Config) -> Work:
    """Gradient, parameters and their moments are read, parameters and moments written, in 32 bits;
    in bf16 also a copy."""
    params = jax.eval_shape(lambda: config.model.init(jax.random.key(0), config.task.spec))
    state = jax.eval_shape(lambda: config.optimizer.build().init(params))
    count, kept = (
        sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree)) for tree in (params, state)
    )
    return Work(0, 4 * (3 * count + 2 * kept) + 2 * count * (config.precision == "bf16"))


def _transformer(config: Config, model: Transformer, formed: bool, folded: bool) -> dict[str, Work]:
    """`formed`: whether the output of the MLP that the last query is asked through is formed. If
    not, hidden features are read twice more, and no product of their size is with the second map.
    `folded`: whether the maps of the first attention are, so that there are no queries, keys and
    values of tokens: scores and sums are of tokens, as features and positions go through all maps
    at once."""
    spec = config.task.spec
    batch = config.batch
    size = _size(config.precision)
    tokens = batch * spec.length
    width = model.width
    hidden = model.width * model.mlp_factor
    features = 0 if isinstance(config.task, Recall) else spec.inputs  # one-hot tokens are looked up
    mlp = [(width, hidden), (hidden, width)] * model.mlp
    composes = model.norm != "pre" and features < width
    maps: list[tuple[float, float, float]] = []
    of_data: list[
        tuple[float, float, float]
    ] = []  # products of tokens, whose own gradient nobody asks for
    for layer in range(model.layers - 1):
        if folded and layer == 0:
            of_data.append((tokens, features, model.heads * (features + spec.length)))
            of_data += [
                (tokens * model.heads, *shape)
                for shape in [(features, spec.length), (spec.length, features)]
            ]
            maps.append((tokens, model.heads * (features + spec.length), width))
        else:
            first = layer == 0 and composes
            (of_data if first else maps).append((tokens, features if first else width, 3 * width))
            maps.append((tokens, width, width))
        maps += [(tokens, *shape) for shape in mlp]
    once: list[tuple[float, float, float]] = []
    # The gradient behind the last of these MLPs is made of two vectors per head and one more, if
    # the last query passes through the MLP as one map of the stream.
    plain = model.norm == "none" and model.skip and model.mlp and model.activation == "relu"
    if plain and model.layers > 1 and scores_read_stream(model):
        maps.remove((tokens, hidden, width))
        few = 2 * model.heads + 1
        if formed:
            once = [(tokens, hidden, width), (tokens, few, hidden), (tokens, few, hidden)]
        else:  # scores and sums forward and back; the gradient of hidden features
            once = [*[(tokens, hidden, 2 * model.heads)] * 2, (tokens, few, hidden)]
    # The last layer: one query, and every token against one vector per head, twice, in one pass
    # forward and one back.
    alone = model.layers == 1 and model.norm != "pre"
    (of_data if alone else maps).append((tokens, features if alone else width, 2 * model.heads))
    maps += [
        (batch, *shape) for shape in [(width, width)] * 4 + mlp + [(features + spec.outputs, width)]
    ]
    parts = [_once([*3 * maps, *2 * of_data, *once], size)]
    # that gradient is multiplied by the first map where it is made: not read for it, and the
    # stream's written once
    if once:
        parts.append(Work(0, -tokens * (hidden + width) * size))
    if (
        model.layers > 1
    ):  # tokens enter the stream with the output of the first attention, and it is written once
        parts.append(Work(4 * tokens * features * width, 2 * (tokens + width) * features * size))
    # Scores and mixed values; queries, keys, values and the output forward, these and their
    # gradients back.
    between = model.layers - 1 - folded
    attention = Work(
        3 * between * 2 * tokens * 2 * spec.length * width, between * 12 * tokens * width * size
    )
    drawn = 2 * tokens * (4 if isinstance(config.task, Recall) else features * size)
    products = Work(sum(part.operations for part in parts), sum(part.bytes for part in parts))
    return {"products": products, "attention": attention, "data": Work(0, drawn)}


def _minimal(config: Config, model: MinimalAttention) -> dict[str, Work]:
    """One layer: weighted values forward and twice back; three products with one-hot matrices back.
    Queries, values, attention and logits are written and read once forward, and their gradients
    once back."""
    spec = config.task.spec
    size = _size(config.precision)
    length = spec.length
    vocabulary = spec.outputs
    answers = spec.answers or 1
    weighted = 6 * answers * length * vocabulary
    one_hot = (
        2 * vocabulary * (length * vocabulary + answers * (vocabulary + length) + answers * length)
    )
    sequences = min(config.batch, config.n_train or config.batch)
    arrays = (
        model.heads * (answers * (vocabulary + length) + length * vocabulary + answers * length)
        + answers * vocabulary
    )
    return {
        "products": Work(
            sequences * model.heads * (weighted + one_hot), 4 * sequences * arrays * size
        ),
        "data": Work(0, 2 * 4 * sequences * length),
    }


@functools.cache
def matrix_rate(precision: Precision) -> float:
    """Operations a second of one large matrix product: the ceiling that the floor is counted
    with."""
    size = 2048 if jax.default_backend() == "cpu" else 8192
    kind = jnp.bfloat16 if precision == "bf16" else jnp.float32
    a, b = (
        jax.random.normal(jax.random.key(i), (size, size), jnp.float32).astype(kind)
        for i in range(2)
    )
    with products(precision):
        product = jax.jit(jnp.matmul)
        product(a, b).block_until_ready()
        return 4 * 2 * size**3 / median_seconds(lambda: [product(a, b) for _ in range(4)], 5)


@functools.cache
def memory_bandwidth() -> float:
    """Bytes a second that a pass over a large array reads and writes."""
    array = jnp.ones(2**25 if jax.default_backend() == "cpu" else 2**30, jnp.float32)
    once = jax.jit(lambda x: x + 1)
    once(array).block_until_ready()
    return 2 * array.nbytes / median_seconds(lambda: once(array), 5)
