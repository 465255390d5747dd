"""`watch`: a few lines around anybody's training loop."""

import numbers
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.terminal import say
from ..core.writers import Opener, ScalarWriter, find_opener
from ._gradients import Gradients
from ._log import Log
from ._observation import Observation
from ._paths import find_pieces
from ._scores import Part

Writer = str | Callable[[int, Mapping[str, float]], None]


def watch(
    model: nn.Module,
    log: Path | str,
    *,
    every: int = 50,
    start: int | None = None,
    sequences: int = 4,
    queries: int = 64,
    paths: Mapping[str, Sequence[str]] | None = None,
    writers: Sequence[Writer] = (),
) -> "Watch":
    """Watches the attention of a model while it trains, and keeps a log of it.

    Every `every`-th step is looked at; in between the cost is a counter. Nothing of the training is
    changed: parameters are bit for bit those of the loop without it. What is logged, and what it
    assumes and costs, is in docs/torch.md.

    **Arguments:**

    - `model`: the module that the loop trains; it may be wrapped by `torch.compile`, `DataParallel`
      or `DistributedDataParallel` (only rank 0 logs).
    - `log`: a .parquet or .csv file in a folder that is there.
    - `every`: a row in the log for every so many steps.
    - `start`: the number of the first step. Given, an existing log is continued: its rows from this
      step on are dropped. Not given, steps count from 0 and a log that is there already is an
      error.
    - `sequences`, `queries`: attention is looked at in the first sequences of a batch, at the last
      queries of each. For a model that answers at the last position alone say `queries=1`.
    - `paths`: names of the modules that carry queries and keys, and values and outputs, where they
      are not found by themselves: `{"query_key": ["blocks.*.wq", "blocks.*.wk"], "value_output":
      ["blocks.*.wv", "blocks.*.wo"]}`.
    - `writers`: other places for the same numbers: "tensorboard", "wandb" (beside the log), or
      functions of (step, values).

    **Returns:** a [`emergo.torch.Watch`][], to be used in a `with` block and called once per step
    of the optimizer.

    >>> import emergo.torch as et, pandas as pd, tempfile, torch
    >>> model = torch.nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, batch_first=True)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> log = tempfile.mkdtemp() + "/log.parquet"
    >>> with et.watch(model, log, every=2) as watch:
    ...     for _ in range(4):
    ...         loss = model(torch.randn(4, 5, 8)).square().mean()
    ...         optimizer.zero_grad()
    ...         loss.backward()
    ...         optimizer.step()
    ...         watch(loss=loss.item())
    >>> pd.read_parquet(log)["step"].tolist(), watch.layers
    ([0, 2], ['self_attn'])
    """
    part = Part(_whole("sequences", sequences, 1), _whole("queries", queries, 1))
    return Watch(model, log, _whole("every", every, 1), start, part, paths, writers)


class Watch:
    """A model that is being watched; made by [`emergo.torch.watch`][].

    It is called once after every step of the optimizer, `watch(loss=loss.item())`; what it is given
    becomes columns of the log: numbers, or tensors of one element, which are only read in steps
    that are looked at. The step of the first call is 0, or `start`: it is how often the optimizer
    had stepped before the forward pass that was looked at. `watch(step=...)` says otherwise; steps
    must grow.
    """

    def __init__(
        self,
        model: nn.Module,
        log: Path | str,
        every: int,
        start: int | None,
        part: Part,
        paths: Mapping[str, Sequence[str]] | None,
        writers: Sequence[Writer],
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"watch needs a torch.nn.Module, got {type(model).__name__}")
        self._model = _unwrapped(model)
        self._every = every
        self._part = part
        self._step = 0 if start is None else _whole("start", start, 0)
        self._until = -self._step % every  # calls before the one whose step is looked at
        self._pieces = find_pieces(dict(self._model.named_modules()), paths)
        self._multi_head = paths is None
        self._layers: list[tuple[str, int]] = []
        self._known = False  # whether a step was looked at
        self._observation: Observation | None = None
        self._log = (
            Log(log, start) if _rank() == 0 else None
        )  # other processes of a training do nothing
        self._openers = [_opener(writer) for writer in writers] if self._log else []
        self._writers: list[ScalarWriter] | None = None  # before the `with` block, and after it

    @property
    def layers(self) -> list[str]:
        """The module that attends in each layer that columns are named after; empty before a step
        was looked at."""
        return [name for name, _ in self._layers]

    def __enter__(self) -> "Watch":
        self._writers = []
        if self._log is not None:
            run = f"{self._log.path.stem}-{uuid.uuid4().hex[:8]}"
            self._writers += [opener(self._log.path.parent, run, {}) for opener in self._openers]
        self._prepare()
        return self

    def __exit__(self, *error: object) -> None:
        if self._observation is not None:
            self._observation.close()
        for writer in self._writers or ():
            writer.close({}, self._step)
        self._writers = None
        if self._log is not None:
            self._log.flush()

    def __call__(self, *, step: int | None = None, **metrics: Any) -> None:
        """After a step of the optimizer: its metrics, and its number where it is not one more than
        the last."""
        if self._writers is None:
            raise InputError(
                "watch is called outside of its block; write: with et.watch(...) as watch:"
            )
        if self._log is None:
            return
        self._step = self._step if step is None else step
        if self._until == 0:
            self._record(self._log, metrics)
            self._until = self._every
        self._step += 1
        self._until -= 1
        self._prepare()

    def _prepare(self) -> None:
        """Before a step: begins to look if it is one of those."""
        if self._until == 0 and self._log is not None:
            gradients = Gradients(self._pieces, self._multi_head)
            self._observation = Observation(
                dict(self._model.named_modules()), self._part, gradients, self._layers
            )

    def _record(self, log: Log, metrics: Mapping[str, Any]) -> None:
        observation = self._observation
        assert observation is not None
        observation.close()
        probes = observation.values()
        step = _whole("step", self._step, 0)
        if log.last is not None and step <= log.last:
            raise InputError(f"steps must grow: step {step} after step {log.last}")
        if not self._known:
            self._check(log, observation, probes)
        row = {name: _number(name, value) for name, value in metrics.items()}
        for name in row.keys() & probes.keys():
            raise InputError(
                f"watch({name}=...): a column of this name is logged already; choose another name"
            )
        log.append(step, row, probes)
        for writer in self._writers or ():
            writer.write(row | probes, step)

    def _check(self, log: Log, observation: Observation, probes: Mapping[str, float]) -> None:
        """After the first step that was looked at."""
        if not observation.passes:
            raise InputError(
                "the model did not compute with gradients since the last call of watch; give "
                "watch the model that is trained"
            )
        if not self._layers:
            ways = (
                "scaled_dot_product_attention, nn.MultiheadAttention or a softmax over (n, "
                "heads, queries, keys)"
            )
            raise InputError(
                f"no attention was found in {type(self._model).__name__}: it must go through {ways}"
            )
        log.check_layers(self.layers, probes)
        without = [
            str(layer)
            for layer in range(len(self._layers))
            if f"gradient_query_key_{layer}" not in probes
        ]
        if without:
            layers = f"{'layer' if len(without) == 1 else 'layers'} {', '.join(without)}"
            say(
                f"no gradients are logged for {layers}: no maps of queries, keys and values were "
                f"found; name them by paths="
            )
        self._known = True


def _whole(name: str, value: Any, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise InputError(f"{name} must be a whole number of at least {low}, got {value!r}")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, numbers.Real) or (isinstance(value, Tensor) and value.numel() == 1):
        return float(value.item() if isinstance(value, Tensor) else value)
    kind = (
        f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:60]
    )
    raise InputError(f"watch({name}=...): a metric must be a number, got {kind}")


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of what `torch.compile` and `DataParallel` and its like make of it."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _rank() -> int:
    distributed = torch.distributed
    return (
        distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
    )


class _Function:
    """A user's function as a writer."""

    def __init__(self, function: Callable[[int, Mapping[str, float]], None]) -> None:
        self._function = function

    def write(self, values: Mapping[str, Any], step: int) -> None:
        self._function(step, values)

    def close(self, summary: Mapping[str, Any], step: int) -> None:
        """The function is the user's."""


def _opener(writer: Writer) -> Opener:
    return (
        find_opener(writer)
        if isinstance(writer, str)
        else lambda folder, run, config: _Function(writer)
    )
