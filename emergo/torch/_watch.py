"""`watch`: observe a training loop with a few lines of code."""

import numbers
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.classes import HeadClasses
from ..core.errors import InputError
from ..core.terminal import say
from ..core.writers import ScalarWriter, find_opener
from ._gradients import Gradients
from ._heads import STEPS_PER_SCORE, HeadBatch, repeated_tokens, score_heads
from ._log import Log
from ._observation import Observation
from ._packed import Packed, pack_numbers, read
from ._paths import PATHS, WORDS, find_pieces, find_raw
from ._scores import Part
from ._statistics import head_statistics

Writer = str | Callable[[int, Mapping[str, float]], None]


class Watch:
    """Watch the attention of a model while it trains, and write a log.

    Every `every`-th step is observed. Other steps only cost a counter. The training does not
    change: the parameters are bit for bit equal to a loop without `watch`. docs/torch.md lists the
    columns of the log, the assumptions and the cost.

    **Arguments:**

    - `model`: the module that is trained; it may be wrapped by `torch.compile`, `DataParallel` or
      `DistributedDataParallel` (only rank 0 logs).
    - `log`: a .csv file in an existing folder.
    - `every`: the number of steps per row of the log.
    - `start`: the number of the first step. With it, an existing log is continued, and its rows
      from this step on are dropped. Without it, steps count from 0, and an existing log is an
      error.
    - `overwrite`: replace an existing log.
    - `sequences`, `queries`: how many of the first sequences of a batch, and of the last queries of
      each sequence, are observed. Use `queries=1` for a model that answers at the last position
      only.
    - `heads`: the fixed batch on which heads are scored, at every fourth row or 200 steps. By
      default, repeated random tokens for models of token ids, and none for other models, which need
      a [`emergo.torch.HeadBatch`][]; None: no scores.
    - `paths`: names of the modules or parameters for queries and keys, and for values and outputs,
      if they are not found automatically: `{"query_key": ["blocks.*.wq", "blocks.*.wk"],
      "value_output": ["blocks.*.wv", "blocks.*.wo"]}`.
    - `writers`: more outputs for the same numbers: "tensorboard", "wandb" (both in the folder of
      the log), or functions of (step, values).

    Use it in a `with` block, and call it once after every step of the optimizer: `watch(loss)`, or
    `watch(loss=loss, accuracy=accuracy)`. The arguments become columns of the log. They are
    numbers, or tensors of one element, which are read in observed steps only. The step of a row
    counts the optimizer steps before the observed forward pass. The first call has the step 0, or
    `start`; `watch(step=...)` sets another one. Steps must grow. `watch.report` adds metrics at any
    time, and `watch.flush()` writes the log to the disk.

    >>> import emergo.torch as et, pandas as pd, tempfile, torch
    >>> model = torch.nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, batch_first=True)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> log = tempfile.mkdtemp() + "/log.csv"
    >>> with et.watch(model, log, every=2) as watch:
    ...     for _ in range(4):
    ...         loss = model(torch.randn(4, 5, 8)).square().mean()
    ...         optimizer.zero_grad()
    ...         loss.backward()
    ...         optimizer.step()
    ...         watch(loss)
    >>> pd.read_csv(log)["step"].tolist(), watch.layers
    ([0, 2], ['self_attn'])
    """

    def __init__(
        self,
        model: nn.Module,
        log: Path | str,
        *,
        every: int = 50,
        start: int | None = None,
        overwrite: bool = False,
        sequences: int = 4,
        queries: int = 64,
        heads: HeadBatch | Literal["auto"] | None = "auto",
        paths: Mapping[str, Sequence[str]] | None = None,
        writers: Sequence[Writer] = (),
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"watch needs a torch.nn.Module, got {type(model).__name__}")
        if not (heads is None or heads == "auto" or isinstance(heads, HeadBatch)):
            raise InputError(f"heads must be a HeadBatch, 'auto' or None, got {heads!r}"[:200])
        self._model = _unwrapped(model)
        self._every = _whole("every", every, 1)
        self._part = Part(_whole("sequences", sequences, 1), _whole("queries", queries, 1))
        self._step = 0 if start is None else _whole("start", start, 0)
        self._until = -self._step % every  # calls before the next observed step
        self._called = False
        self._observed: int | None = None  # the last observed step
        self._heads = heads
        self._inside = ""  # the part of the model that is called with token ids
        self._scores: Packed | None = None  # of the observed step
        self._rows = 0  # the number of observed steps
        self._scored: tuple[int, int] | None = None  # the row and the step of the last scores
        self._classes = HeadClasses()
        modules = dict(self._model.named_modules())
        self._pieces = find_pieces(modules, paths)
        raw = {} if paths is None else find_raw(modules)
        self._raw = {name: raw[name] for name in self._pieces if name in raw}
        self._multi_head = paths is None
        self._layers: list[tuple[str, int]] = []
        self._checked = False  # True after the first observed step
        self._said: set[str] = set()
        self._observation: Observation | None = None
        # Only the first of several distributed processes observes and logs.
        self._log = Log(log, start, overwrite) if _rank() == 0 else None
        self._openers = [find_opener(name) for name in writers if isinstance(name, str)]
        self._functions = [writer for writer in writers if not isinstance(writer, str)]
        self._writers: list[ScalarWriter] | None = None  # None outside of the `with` block

    @property
    def layers(self) -> list[str]:
        """The module of each layer in the column names; empty before the first observed step."""
        return [name for name, _ in self._layers]

    def begin(self, offset: int = 0) -> None:
        """Enter the block from a callback; the first observed step is `offset` modulo `every`."""
        self._until = (offset - self._step) % self._every
        self.__enter__()

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
        self.flush()
        if self._log is not None and not self._called and error[:1] in ((), (None,)):
            self._say("watch was never called, so nothing is logged; write watch(loss) in the loop")

    def flush(self) -> None:
        """Write the log to the disk now; otherwise this takes at most five seconds."""
        if self._log is not None:
            self._log.flush()

    def __call__(self, loss: Any = None, /, *, step: int | None = None, **metrics: Any) -> None:
        """Record the metrics after a step of the optimizer; `step` replaces the counted number."""
        if self._writers is None:
            raise InputError(
                "watch is called outside of its block; write: with et.watch(...) as watch:"
            )
        if loss is not None:
            if "loss" in metrics:
                raise InputError("watch(loss, loss=...): give the loss once")
            metrics = {"loss": loss} | metrics
        self._called = True
        if self._log is None:
            return
        self._step = self._step if step is None else step
        if self._until == 0:
            self._record(self._log, metrics)
            self._until = self._every
        self._step += 1
        self._until -= 1
        self._prepare()

    def report(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add metrics of any step to the log, such as those of an evaluation."""
        self._called = True
        if self._log is not None and metrics:
            self._write(self._log, step, metrics, {})

    def _prepare(self) -> None:
        """Start an observation if the next step is to be observed."""
        if self._until == 0 and self._log is not None:
            self._scores = None
            self._observation = Observation(
                dict(self._model.named_modules()),
                self._part,
                head_statistics,
                Gradients(self._pieces, self._multi_head, self._raw),
                self._layers,
                self._score_heads,
            )

    def _score_heads(self, observation: Observation) -> None:
        """Score the heads with the parameters of the observed step, before they change."""
        if isinstance(self._heads, HeadBatch) and self._scored is not None:
            row, step = self._scored
            if self._rows - row < self._heads.every and self._step - step < STEPS_PER_SCORE:
                return
        automatic = self._heads == "auto"
        if automatic and observation.input is not None:
            self._heads = repeated_tokens(observation.input)
            self._inside = observation.input.module
        if not isinstance(self._heads, HeadBatch) or not observation.layers:
            return
        try:
            called = self._model.get_submodule(self._inside)
            self._scores = score_heads(called, self._heads, observation)
            self._scored = self._rows, self._step
        except InputError:
            raise
        except Exception as error:  # the model may need more than token ids
            lines = str(error).splitlines() or [""]
            self._heads = None
            advice = "; pass heads=et.HeadBatch(inputs) with all inputs of the model"
            self._say(
                f"heads are not scored: {type(error).__name__}: {lines[0][:200]}"
                f"{advice if automatic else ''}"
            )

    def _record(self, log: Log, metrics: Mapping[str, Any]) -> None:
        observation = self._observation
        assert observation is not None
        observation.close()
        if self._step == self._observed:
            raise InputError(f"steps must grow: step {self._step} after step {self._observed}")
        self._observed = self._step
        self._rows += 1
        heads, scores, gradients, numbers = read(
            observation.heads(),
            self._scores or pack_numbers({}),
            observation.gradients.summary(self.layers),
            pack_numbers(metrics),
        )
        probes = heads | scores | gradients
        if not self._checked:
            self._check(log, observation, probes)
        if observation.problem:
            self._say(f"some attention could not be observed: {observation.problem}")
        self._write(log, self._step, {**metrics, **numbers}, probes)
        for found in self._classes.update(self._step, scores):
            say(f"{log.path.name}: {found}")

    def _write(
        self, log: Log, step: int, metrics: Mapping[str, Any], probes: Mapping[str, float]
    ) -> None:
        step = _whole("step", step, 0)
        if log.last is not None and step < log.last:
            raise InputError(f"steps must grow: step {step} after step {log.last}")
        row = {name: _number(name, value) for name, value in metrics.items()}
        for name in row.keys() & probes.keys():
            raise InputError(
                f"watch({name}=...): a column of this name is logged already; choose another name"
            )
        log.append(step, row, probes)
        for writer in self._writers or ():
            writer.write({**row, **probes}, step)
        for function in self._functions:
            function(step, {**row, **probes})

    def _check(self, log: Log, observation: Observation, probes: Mapping[str, float]) -> None:
        """Check the first observed step, and the log that is continued."""
        if not observation.passes:
            raise InputError(
                "the model did not compute with gradients since the last call of watch; pass "
                "the model that is trained to watch"
            )
        log.check_heads(probes)
        if not self._layers:
            self._say(
                f"no attention was found in {type(self._model).__name__}, so only metrics are "
                f"logged; attention is scaled_dot_product_attention, nn.MultiheadAttention, or a "
                f"softmax over (n, heads, queries, keys) that is multiplied with values"
            )
        for layer, key in enumerate(self._layers):
            name = key[0] or type(self._model).__name__
            if key in observation.folded:
                maps, heads = observation.folded[key]
                self._say(
                    f"layer {layer} ({name}): {maps} maps are read as {maps // heads} sequences "
                    f"of {heads} heads each"
                )
        reasons: dict[tuple[str, str], list[str]] = {}
        for layer in range(len(self._layers)):
            paths = [path for path in PATHS if f"gradient_{path}_{layer}" not in probes]
            if paths:
                what = f" of {WORDS[paths[0]]}" if len(paths) == 1 else ""
                reason = observation.gradients.missing(layer, self.layers, paths)
                reasons.setdefault((what, reason), []).append(str(layer))
        for (what, reason), layers in reasons.items():
            where = f"layer{'s' if len(layers) > 1 else ''} {', '.join(layers)}"
            self._say(f"no gradients{what} are logged for {where}: {reason}")
        self._checked = True

    def _say(self, line: str) -> None:
        """Print a line once."""
        if line not in self._said:
            self._said.add(line)
            say(line)


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
