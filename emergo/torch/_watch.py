"""`watch`: observe a training loop with a few lines of code."""

import numbers
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.terminal import say
from ..core.writers import ScalarWriter, find_opener
from ._gradients import Gradients
from ._log import Log
from ._observation import Observation
from ._paths import find_pieces
from ._scores import Part

Writer = str | Callable[[int, Mapping[str, float]], None]


class Watch:
    """Watch the attention of a model while it trains, and write a log.

    Every `every`-th step is observed. Other steps only cost a counter. The training does not
    change: the parameters are bit for bit equal to a loop without `watch`. docs/torch.md lists the
    columns of the log, the assumptions and the cost.

    **Arguments:**

    - `model`: the module that is trained; it may be wrapped by `torch.compile`, `DataParallel` or
      `DistributedDataParallel` (only rank 0 logs).
    - `log`: a .parquet or .csv file in an existing folder.
    - `every`: the number of steps per row of the log.
    - `start`: the number of the first step. With it, an existing log is continued, and its rows
      from this step on are dropped. Without it, steps count from 0, and an existing log is an
      error.
    - `sequences`, `queries`: how many of the first sequences of a batch, and of the last queries of
      each sequence, are observed. Use `queries=1` for a model that answers at the last position
      only.
    - `paths`: names of the modules for queries and keys, and for values and outputs, if they are
      not found automatically: `{"query_key": ["blocks.*.wq", "blocks.*.wk"], "value_output":
      ["blocks.*.wv", "blocks.*.wo"]}`.
    - `writers`: more outputs for the same numbers: "tensorboard", "wandb" (both in the folder of
      the log), or functions of (step, values).

    Use it in a `with` block, and call it once after every step of the optimizer:
    `watch(loss=loss.item())`. The arguments become columns of the log. They are numbers, or tensors
    of one element, which are read in observed steps only. The step of a row counts the optimizer
    steps before the observed forward pass. The first call has the step 0, or `start`;
    `watch(step=...)` sets another one. Steps must grow.

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

    def __init__(
        self,
        model: nn.Module,
        log: Path | str,
        *,
        every: int = 50,
        start: int | None = None,
        sequences: int = 4,
        queries: int = 64,
        paths: Mapping[str, Sequence[str]] | None = None,
        writers: Sequence[Writer] = (),
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"watch needs a torch.nn.Module, got {type(model).__name__}")
        self._model = _unwrapped(model)
        self._every = _whole("every", every, 1)
        self._part = Part(_whole("sequences", sequences, 1), _whole("queries", queries, 1))
        self._step = 0 if start is None else _whole("start", start, 0)
        self._until = -self._step % every  # calls before the next observed step
        self._pieces = find_pieces(dict(self._model.named_modules()), paths)
        self._multi_head = paths is None
        self._layers: list[tuple[str, int]] = []
        self._checked = False  # True after the first observed step
        self._observation: Observation | None = None
        # Only the first of several distributed processes observes and logs.
        self._log = Log(log, start) if _rank() == 0 else None
        self._openers = [find_opener(name) for name in writers if isinstance(name, str)]
        self._functions = [writer for writer in writers if not isinstance(writer, str)]
        self._writers: list[ScalarWriter] | None = None  # None outside of the `with` block

    @property
    def layers(self) -> list[str]:
        """The module of each layer in the column names; empty before the first observed step."""
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
        """Record the metrics after a step of the optimizer; `step` replaces the counted number."""
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
        """Start an observation if the next step is to be observed."""
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
        if not self._checked:
            self._check(log, observation, probes)
        row = {name: _number(name, value) for name, value in metrics.items()}
        for name in row.keys() & probes.keys():
            raise InputError(
                f"watch({name}=...): a column of this name is logged already; choose another name"
            )
        log.append(step, row, probes)
        for writer in self._writers or ():
            writer.write(row | probes, step)
        for function in self._functions:
            function(step, row | probes)

    def _check(self, log: Log, observation: Observation, probes: Mapping[str, float]) -> None:
        """Check the first observed step, and the log that is continued."""
        if not observation.passes:
            raise InputError(
                "the model did not compute with gradients since the last call of watch; pass "
                "the model that is trained to watch"
            )
        if not self._layers:
            raise InputError(
                f"no attention was found in {type(self._model).__name__}: it must use "
                f"scaled_dot_product_attention, nn.MultiheadAttention or a softmax over (n, "
                f"heads, queries, keys)"
            )
        log.check_layers(self.layers, probes)
        layers = range(len(self._layers))
        without = [str(k) for k in layers if f"gradient_query_key_{k}" not in probes]
        if without:
            say(
                f"no gradients are logged for layers {', '.join(without)}: their maps of queries, "
                f"keys and values were not found; name them with paths="
            )
        self._checked = True


watch = Watch


def _whole(name: str, value: Any, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise InputError(f"{name} must be a whole number of at least {low}, got {value!r}")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, numbers.Real):
        return float(value)
    kind = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise InputError(f"watch({name}=...): a metric must be a number, got {kind[:60]}")


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of `torch.compile` and `DataParallel`."""
    wrappers = nn.DataParallel | nn.parallel.DistributedDataParallel
    while True:
        inner = model.module if isinstance(model, wrappers) else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _rank() -> int:
    started = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if started else 0
