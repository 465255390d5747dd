"""What passes between a task, a model and the engine: a specification, batches, outputs, taps and thresholds."""

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int

from ._errors import InputError


class Spec(NamedTuple):
    """The sizes that a model has to fit.

    ```python
    >>> em.SingleLocation(length=32, dim=8).spec
    Spec(length=32, inputs=8, outputs=8, answers=None, marks=0, used=None)

    ```
    """

    length: int
    """Tokens of a sequence that the model reads."""
    inputs: int
    """Features of a token; where tokens are whole numbers, how many different ones there are."""
    outputs: int
    """Numbers that the model puts out."""
    answers: int | None = None
    """How many of the last positions are read: outputs are then (n, answers, outputs). None: the last one, (n, outputs)."""
    marks: int = 0
    """How many of the features, the first ones, are indicators rather than content."""
    used: tuple[Any, Any] | None = None
    """In a program for tasks of several sizes, how many inputs and outputs this run really has; the others are zero."""


class Batch(NamedTuple):
    """Sequences and what is to be answered.

    ```python
    >>> import jax, jax.numpy as jnp
    >>> task = em.SingleLocation(length=4, dim=2)
    >>> batch = task.batch(jax.random.key(0), 3, task.truth(jax.random.key(1)))
    >>> batch.inputs.shape, batch.target.shape, batch.relevant.shape
    ((3, 4, 2), (3, 2), (3, 4))

    ```
    """

    inputs: Float[Array, "n length features"] | Int[Array, "n length"]
    target: Any
    """What the loss compares with; the first axis is the sequence."""
    relevant: Bool[Array, "n length"] | None = None
    """Which positions an ideal model would attend to, for probes. The model never sees it."""


class Output(NamedTuple):
    """What a forward pass returns.

    ```python
    >>> import jax, jax.numpy as jnp
    >>> model = em.Transformer(layers=1, heads=2, width=8)
    >>> params = model.init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=2))
    >>> output = model.apply(params, jnp.ones((5, 4, 3)))
    >>> output.value.shape, output.attention.shape
    ((5, 2), (5, 1, 2, 4))

    ```
    """

    value: Float[Array, "n outputs"] | Float[Array, "n answers outputs"]
    attention: Float[Array, "n layers heads length"] | None = None
    """Attention weights of the last position, where the model has any."""
    value_path: Float[Array, "inputs outputs"] | None = None
    """The linear map from a token to the output through values alone, where the model has one: what the output would read from
    a token that was attended to."""
    taps: dict[str, Array] | None = None
    """By name, the values at the taps that a probe reads."""


@runtime_checkable
class Change(Protocol):
    """An intervention, as a forward pass sees it."""

    def change(self, name: str, value: Array, step: Any) -> Array: ...


class Tap:
    """What a forward pass is given besides parameters and inputs. Every named point of it goes through a call of this.

    A call returns the value, changed where an intervention writes, and keeps it where a probe reads.

    **Arguments:**

    - `spec`: the task's sizes; None outside of training.
    - `key`: for what is random in a step of training, such as dropout; None in evaluations.
    - `step`: the step of training.
    - `fused`: whether kernels of a GPU may be used.
    - `changes`: interventions.
    - `reads`: names of taps to keep, with `*` for any part.

    ```python
    >>> import jax, jax.numpy as jnp
    >>> model = em.Transformer(layers=1, heads=2, width=8)
    >>> params = model.init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=2))
    >>> tap = em.Tap(reads=["layers.*.pattern"])
    >>> output = model.apply(params, jnp.ones((5, 4, 3)), tap)
    >>> tap.taken["layers.0.pattern"].shape
    (5, 2, 4, 4)

    ```
    """

    def __init__(
        self,
        spec: Spec | None = None,
        key: Any = None,
        step: Any = None,
        *,
        fused: bool = False,
        changes: Sequence[Change] = (),
        reads: Sequence[str] = (),
    ) -> None:
        self.spec, self.key, self.step, self.fused = spec, key, step, fused
        self._changes, self._reads = changes, reads
        self.taken: dict[str, Array] = {}
        """The values at the taps that are read."""

    def __call__(self, name: str, value: Array) -> Array:
        for change in self._changes:
            value = change.change(name, value, self.step)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self._reads):
            self.taken[name] = value
        return value


def probe(*, reads: Sequence[str] = (), version: int = 1) -> Callable[[Any], Any]:
    """Marks a probe that reads taps: it sees the first test sequences only, with the taps' values in `output.taps`.

    **Arguments:**

    - `reads`: names of taps, with `*` for any part.
    - `version`: raised by the author when it measures something else under the same name.

    ```python
    >>> @em.probe(reads=["layers.*.scores"])
    ... def largest_score(params, output, batch, truth, step):
    ...     return {"largest_score": max(scores.max() for scores in output.taps.values())}

    ```
    """

    def mark(function: Any) -> Any:
        function.reads, function.version = tuple(reads), version
        return function

    return mark


NO_TAP = Tap()
"""Reads and writes nothing."""


class Threshold(NamedTuple):
    """What tells that a run has learned: a metric that has come to a number. `Above` and `Below` make one."""

    metric: str
    number: float
    direction: Literal["above", "below"]


def Above(metric: str, number: float) -> Threshold:
    """Learned when `metric` is at least `number`.

    ```python
    >>> em.Above("accuracy", 0.9)
    Threshold(metric='accuracy', number=0.9, direction='above')

    ```
    """
    return _threshold(metric, number, "above")


def Below(metric: str, number: float) -> Threshold:
    """Learned when `metric` is at most `number`.

    ```python
    >>> em.Below("loss", 0.1)
    Threshold(metric='loss', number=0.1, direction='below')

    ```
    """
    return _threshold(metric, number, "below")


def _threshold(metric: str, number: float, direction: Literal["above", "below"]) -> Threshold:
    if not isinstance(metric, str) or isinstance(number, bool) or not isinstance(number, int | float):
        raise InputError(f"{direction.title()} takes the name of a metric and a number, got {metric!r} and {number!r}")
    return Threshold(metric, float(number), direction)
