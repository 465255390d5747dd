"""The contract between tasks, models and training: sizes, batches, outputs, taps and thresholds."""

import dataclasses
import fnmatch
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .errors import InputError


class Spec(NamedTuple):
    """The sizes of a task, which a model must fit.

    Outputs have shape (n, outputs), or (n, answers, outputs) if `answers` is not None.

    >>> em.SingleLocation(length=32, dim=8).spec
    Spec(length=32, inputs=8, outputs=8, answers=None, marks=0, used=None, deferred=False)
    """

    length: int  # tokens per sequence
    inputs: int  # features per token; for integer tokens, the size of the vocabulary
    outputs: int  # numbers per output
    # The number of last positions that are read. None: only the last one, without an axis for it.
    answers: int | None = None
    marks: int = 0  # how many of the first features are indicators rather than content
    # In a program padded for several sizes: the inputs and outputs of the run; the rest is 0.
    used: tuple[Any, Any] | None = None
    # True if the task can apply the readout itself, in parts of a batch, so that the outputs of the
    # whole batch need not exist at once. A model may then return `features` and `readout` instead
    # of `value`; it may also ignore this.
    deferred: bool = False


class Batch(NamedTuple):
    """Sequences and their targets. Models do not see `relevant`, the positions that an ideal model
    would attend to.

    >>> import jax
    >>> task = em.SingleLocation(length=4, dim=2)
    >>> batch = task.batch(jax.random.key(0), 3, task.truth(jax.random.key(1)))
    >>> batch.inputs.shape, batch.target.shape, batch.relevant.shape
    ((3, 4, 2), (3, 2), (3, 4))
    """

    inputs: Float[Array, "n length features"] | Int[Array, "n length"]
    target: Any  # compared with the output by the loss; the first axis is the sequence
    relevant: Bool[Array, "n length"] | None = None


class Readout(NamedTuple):
    """The last map of a model, from features to outputs.

    >>> import jax.numpy as jnp
    >>> em.Readout(jnp.ones((3, 2)))(jnp.ones((4, 3))).shape
    (4, 2)
    """

    weight: Float[Array, "width outputs"]
    bias: Float[Array, " outputs"] | None = None

    def __call__(self, features: Float[Array, "*rows width"]) -> Float[Array, "*rows outputs"]:
        """Return the outputs in at least fp32; the operands of the product keep their type."""
        wide = jnp.promote_types(features.dtype, jnp.float32)
        value = jnp.matmul(features, self.weight, preferred_element_type=wide)
        return value if self.bias is None else value + self.bias.astype(wide)


class Output(NamedTuple):
    """The result of a forward pass.

    If the task sets `Spec.deferred`, a model may leave out `value`, which is `readout(features)`.

    `attention` is the attention of the last position, if the model has attention. `value_path` is
    the linear map from a token to the output through values alone, as if the token had all the
    attention; a model may leave it out.

    >>> import jax, jax.numpy as jnp
    >>> model = em.Transformer(layers=1, heads=2, width=8)
    >>> params = model.init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=2))
    >>> output = model.apply(params, jnp.ones((5, 4, 3)))
    >>> output.value.shape, output.attention.shape
    ((5, 2), (5, 1, 2, 4))
    """

    value: Any  # an array of shape (n, outputs) or (n, answers, outputs), or None
    attention: Float[Array, "n layers heads length"] | None = None
    value_path: Float[Array, "inputs outputs"] | None = None
    taps: dict[str, Array] | None = None  # values read at taps, by name
    features: Float[Array, "n width"] | Float[Array, "n answers width"] | None = None
    readout: Readout | None = None


@dataclasses.dataclass(eq=False)
class Tap:
    """Access to the named points of a forward pass.

    The forward pass calls the tap at each point. The call returns the value, after interventions
    have changed it, and keeps it in `taken` if a probe reads it.

    >>> import jax, jax.numpy as jnp
    >>> model, tap = em.Transformer(layers=1, heads=2, width=8), em.Tap(reads=["layers.*.pattern"])
    >>> params = model.init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=2))
    >>> output = model.apply(params, jnp.ones((5, 4, 3)), tap)
    >>> tap.taken["layers.0.pattern"].shape
    (5, 2, 4, 4)
    """

    spec: Spec | None = None  # sizes of the task; None outside of training
    key: Any = None  # random key of a training step, for dropout; None in evaluations
    step: Any = None  # training step
    _: dataclasses.KW_ONLY
    changes: Sequence[Any] = ()  # interventions
    reads: Sequence[str] = ()  # names of points to keep, with `*` as a wildcard
    batch: Batch | None = None  # the batch with its targets, for interventions only
    taken: dict[str, Array] = dataclasses.field(default_factory=dict, init=False)

    @property
    def deferred(self) -> bool:
        """Return True if the model may return `features` and `readout` instead of `value`.

        The task must ask for it, and nothing may read or change the tap `value`.
        """
        if self.spec is None or not self.spec.deferred:
            return False
        # A change that does not name its tap may act on any value.
        points = (getattr(change, "tap", "*") for change in self.changes)
        wanted = (*self.reads, *points, *(name for one in self.changes for name in one.reads))
        return not any(fnmatch.fnmatchcase("value", str(pattern)) for pattern in wanted)

    def __call__(self, name: str, value: Array) -> Array:
        for change in self.changes:
            value = change.change(name, value, self)
        kept = (*self.reads, *(pattern for change in self.changes for pattern in change.reads))
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in kept):
            self.taken[name] = value
        return value


def probe(
    *, reads: Sequence[str] = (), gradients: bool = False, version: int = 1
) -> Callable[[Any], Any]:
    """Mark a probe that needs more than (params, output, batch, truth, step), or that has changed.

    **Arguments:**

    - `reads`: names of taps, with `*` as a wildcard. The probe finds their values in
      `output.taps`, for the first test sequences only.
    - `gradients`: pass a further argument: the gradients of the training loss on the two halves of
      a batch of training data, as a pair of pytrees like `params`. The batch is drawn for the
      probe, and the training data stay the same.
    - `version`: to be raised when the probe measures something else under the same name.

    >>> @em.probe(reads=["layers.*.scores"])
    ... def largest_score(params, output, batch, truth, step):
    ...     return {"largest_score": max(scores.max() for scores in output.taps.values())}
    """

    if isinstance(reads, str):
        raise InputError(f"probe(reads=…) takes a list of taps, e.g. [{reads!r}], got {reads!r}")

    def mark(function: Any) -> Any:
        function.reads = tuple(reads)
        function.gradients = gradients
        function.version = version
        return function

    return mark


NO_TAP = Tap()  # reads and writes nothing


class Threshold(NamedTuple):
    """A condition on a metric that defines learning; made by `Above` and `Below`."""

    metric: str
    number: float
    direction: Literal["above", "below"]


def Above(metric: str, number: float) -> Threshold:
    """Define learning as `metric` >= `number`.

    >>> em.Above("accuracy", 0.9)
    Threshold(metric='accuracy', number=0.9, direction='above')
    """
    return _threshold(metric, number, "above")


def Below(metric: str, number: float) -> Threshold:
    """Define learning as `metric` <= `number`.

    >>> em.Below("loss", 0.1)
    Threshold(metric='loss', number=0.1, direction='below')
    """
    return _threshold(metric, number, "below")


def _threshold(metric: str, number: float, direction: Literal["above", "below"]) -> Threshold:
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not isinstance(metric, str) or not is_number:
        raise InputError(
            f"{direction.title()} takes the name of a metric and a number, got {metric!r} and "
            f"{number!r}"
        )
    return Threshold(metric, float(number), direction)
