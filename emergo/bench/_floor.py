"""The arithmetic floor: the operations that a step of our models must do, whatever a program does.

The engine plans with the products that its own programs hold; a floor is a statement about the model instead, so that a program
that does more than it must has a smaller share of it.
"""

from ..engine import Config
from ..models import ChainTransformer, MinimalAttention, Transformer
from ..tasks import Recall


def floor_operations(config: Config) -> float:
    """Floating-point operations of one training step of one run after folding: three times those of the forward.

    Matrix products alone: two operations a multiply and add. The backward pass of a product is two products of its size.
    """
    model = config.model
    if isinstance(model, MinimalAttention):
        return _minimal(config, model)
    if isinstance(model, ChainTransformer):
        return _chain(config, model)
    if not isinstance(model, Transformer):
        raise TypeError(f"the floor of {type(model).__name__} is not known")
    return _transformer(config, model)


def _transformer(config: Config, model: Transformer) -> float:
    spec = config.task.spec
    tokens, width = config.batch * spec.length, model.width
    features = 0 if isinstance(config.task, Recall) else spec.inputs  # one-hot tokens are looked up
    hidden = 2 * width * model.mlp_factor * model.mlp  # up and down
    composes = model.norm != "pre" and features < width
    total = 0.0
    for layer in range(model.layers - 1):
        inputs = features if layer == 0 and composes else width
        total += 2 * tokens * (3 * inputs * width + 2 * spec.length * width + width * width + hidden * width)
        if layer == 0:
            total += 2 * tokens * features * width  # the stream of the skip connection
    # The last layer: one query, and every token against one vector per head, twice.
    read = features if model.layers == 1 and model.norm != "pre" else width
    total += 2 * tokens * 2 * read * model.heads
    total += 2 * config.batch * (4 * width * width + hidden * width + (features + spec.outputs) * width)
    return 3 * total


def _rows(config: Config) -> int:
    return config.batch if config.n_train is None else min(config.batch, config.n_train)


def _minimal(config: Config, model: MinimalAttention) -> float:
    """The first layer: weighted values forward and twice back; three products with one-hot matrices back."""
    spec = config.task.spec
    length, vocabulary, answers = spec.length, spec.outputs, spec.answers or 1
    size = vocabulary + length
    queries = answers if model.layers == 1 else length
    outputs = vocabulary if model.layers == 1 else size
    total = 6 * queries * length * outputs + 2 * vocabulary * (length * outputs + queries * size + queries * length)
    dense = size**2 * 4 + 4 * length * size
    return _rows(config) * model.heads * (total + 3 * (model.layers - 1) * length * dense)


def _chain(config: Config, model: ChainTransformer) -> float:
    """The first block's look-ups are products with one-hot matrices back: for queries and the stream, for keys, for values."""
    spec = config.task.spec
    length, answers, width, later = spec.length, spec.answers or 1, model.width, model.layers - 1
    queries, first = later * length + answers, length if later else answers
    per_query = 2 * width * (width + 2 * length + 2 * model.hidden)
    mapped = 2 * width * width * (queries - first + 2 * later * length)
    products = 3 * (queries * per_query + mapped + 2 * answers * width * spec.outputs)
    return _rows(config) * (products + 4 * spec.outputs * width * (first + length))
