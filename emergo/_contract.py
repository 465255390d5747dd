"""What passes between a task, a model and the engine: a specification, batches, outputs, taps and thresholds."""

import dataclasses
import fnmatch
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int

from ._errors import InputError


class Spec(NamedTuple):
    """The sizes that a model has to fit. Outputs are (n, outputs), or where `answers` is given (n, answers, outputs).

    >>> em.SingleLocation(length=32, dim=8).spec
    Spec(length=32, inputs=8, outputs=8, answers=None, marks=0, used=None)
    """

    length: int  # tokens of a sequence that the model reads
    inputs: int  # features of a token; where tokens are whole numbers, how many different ones there are
    outputs: int  # numbers that the model puts out
    answers: int | None = None  # how many of the last positions are read; None: the last one, without an axis of its own
    marks: int = 0  # how many of the features, the first ones, are indicators rather than content
    used: tuple[Any, Any] | None = None  # in a program for several sizes, the run's own inputs and outputs; others are zero


class Batch(NamedTuple):
    """Sequences and what is to be answered. `relevant`: which positions an ideal model would attend to; no model sees it.

    >>> import jax
    >>> task = em.SingleLocation(length=4, dim=2)
    >>> batch = task.batch(jax.random.key(0), 3, task.truth(jax.random.key(1)))
    >>> batch.inputs.shape, batch.target.shape, batch.relevant.shape
    ((3, 4, 2), (3, 2), (3, 4))
    """

    inputs: Float[Array, "n length features"] | Int[Array, "n length"]
    target: Any  # what the loss compares with; the first axis is the sequence
    relevant: Bool[Array, "n length"] | None = None


class Output(NamedTuple):
    """What a forward pass returns. `attention` is that of the last position, where the model has any; `value_path` the linear
    map from a token to the output through values alone: what the output would read from a token that was attended to.

    >>> import jax, jax.numpy as jnp
    >>> model = em.Transformer(layers=1, heads=2, width=8)
    >>> params = model.init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=2))
    >>> output = model.apply(params, jnp.ones((5, 4, 3)))
    >>> output.value.shape, output.attention.shape
    ((5, 2), (5, 1, 2, 4))
    """

    value: Float[Array, "n outputs"] | Float[Array, "n answers outputs"]
    attention: Float[Array, "n layers heads length"] | None = None
    value_path: Float[Array, "inputs outputs"] | None = None
    taps: dict[str, Array] | None = None  # by name, what is read at taps


@runtime_checkable
class Change(Protocol):
    """An intervention, as a forward pass sees it."""

    reads: ClassVar[tuple[str, ...]]

    def change(self, name: str, value: Array, tap: "Tap") -> Array: ...


@dataclasses.dataclass(eq=False)
class Tap:
    """What a forward pass is given besides parameters and inputs. Every named point of it goes through a call of this, which
    returns the value, changed where an intervention writes, and keeps it in `taken` where a probe reads.

    >>> import jax, jax.numpy as jnp
    >>> model, tap = em.Transformer(layers=1, heads=2, width=8), em.Tap(reads=["layers.*.pattern"])
    >>> params = model.init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=2))
    >>> output = model.apply(params, jnp.ones((5, 4, 3)), tap)
    >>> tap.taken["layers.0.pattern"].shape
    (5, 2, 4, 4)
    """

    spec: Spec | None = None  # the task's sizes; None outside of training
    key: Any = None  # for what is random in a step of training, such as dropout; None in evaluations
    step: Any = None  # of training
    _: dataclasses.KW_ONLY
    fused: int = 0  # how many runs one GPU trains together, idle slots included; its kernels may be used. Else 0
    changes: Sequence[Change] = ()  # interventions
    reads: Sequence[str] = ()  # names of taps to keep, with `*` for any part
    batch: Batch | None = None  # the sequences with their answers, for interventions; no model looks at it
    taken: dict[str, Array] = dataclasses.field(default_factory=dict, init=False)

    def __call__(self, name: str, value: Array) -> Array:
        for change in self.changes:
            value = change.change(name, value, self)
        kept = (*self.reads, *(pattern for change in self.changes for pattern in change.reads))
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in kept):
            self.taken[name] = value
        return value


def probe(*, reads: Sequence[str] = (), gradients: bool = False, version: int = 1) -> Callable[[Any], Any]:
    """Marks a probe that asks for more than (params, output, batch, truth, step), or that has changed.

    **Arguments:**

    - `reads`: the taps that it reads, named with `*` for any part: it sees the first test sequences only, with the taps' values
      in `output.taps`.
    - `gradients`: whether it gets a further argument, the gradients of the training loss on the two halves of one batch of
      training data: a pair of pytrees like `params`. The batch is drawn for it: what the run trains on stays the same.
    - `version`: raised by its author when it measures something else under the same name.

    >>> @em.probe(reads=["layers.*.scores"])
    ... def largest_score(params, output, batch, truth, step):
    ...     return {"largest_score": max(scores.max() for scores in output.taps.values())}
    """

    if isinstance(reads, str):
        raise InputError(f"probe(reads=…) takes a list of taps, e.g. [{reads!r}], got {reads!r}")

    def mark(function: Any) -> Any:
        function.reads, function.gradients, function.version = tuple(reads), gradients, version
        return function

    return mark


NO_TAP = Tap()  # reads and writes nothing


class Threshold(NamedTuple):
    """What tells that a run has learned: a metric that has come to a number. `Above` and `Below` make one."""

    metric: str
    number: float
    direction: Literal["above", "below"]


def Above(metric: str, number: float) -> Threshold:
    """Learned when `metric` is at least `number`.

    >>> em.Above("accuracy", 0.9)
    Threshold(metric='accuracy', number=0.9, direction='above')
    """
    return _threshold(metric, number, "above")


def Below(metric: str, number: float) -> Threshold:
    """Learned when `metric` is at most `number`.

    >>> em.Below("loss", 0.1)
    Threshold(metric='loss', number=0.1, direction='below')
    """
    return _threshold(metric, number, "below")


def _threshold(metric: str, number: float, direction: Literal["above", "below"]) -> Threshold:
    if not isinstance(metric, str) or isinstance(number, bool) or not isinstance(number, int | float):
        raise InputError(f"{direction.title()} takes the name of a metric and a number, got {metric!r} and {number!r}")
    return Threshold(metric, float(number), direction)
