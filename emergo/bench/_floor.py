"""The arithmetic floor: the operations that a step of our models must do, whatever a program does.

The engine plans with the products that its own programs hold; a floor is a statement about the model instead, so that a program
that does more than it must has a smaller share of it.
"""

from ..engine import Config
from ..models import MinimalAttention, Transformer
from ..tasks import Recall


def floor_operations(config: Config) -> float:
    """Floating-point operations of one training step of one run after folding: three times those of the forward.

    Matrix products alone: two operations a multiply and add. The backward pass of a product is two products of its size.
    """
    if isinstance(config.model, Transformer):
        return _transformer(config, config.model)
    if isinstance(config.model, MinimalAttention) and config.model.layers == 1:
        return _minimal(config, config.model)
    raise TypeError(f"the floor of {config.model!r} is not known")


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


def _minimal(config: Config, model: MinimalAttention) -> float:
    """One layer: weighted values forward and twice back; three products with one-hot matrices back."""
    spec = config.task.spec
    length, vocabulary, answers = spec.length, spec.outputs, spec.answers or 1
    weighted = 6 * answers * length * vocabulary
    one_hot = 2 * vocabulary * (length * vocabulary + answers * (vocabulary + length) + answers * length)
    return min(config.batch, config.n_train or config.batch) * model.heads * (weighted + one_hot)
