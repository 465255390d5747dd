"""Observe one step of a training loop from inside the model.

Two tools are installed for the step and removed afterwards. Hooks on the modules track which module
is being computed. A `TorchFunctionMode`, active during the outermost module, intercepts every call
of a PyTorch function, under any name. Neither changes a result. Compiled code cannot be
intercepted, so this step runs without `torch.compile`.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ._gradients import ForwardPass, Gradients, quiet
from ._scores import READERS, Part
from ._statistics import STATISTICS, head_statistics

# Parts of the names of integer inputs that are not tokens.
_NOT_TOKENS = ("mask", "label", "target", "position", "type")


class Observation:
    """Observations of one step; `close` removes the hooks.

    **Arguments:** `layers` lists the known layers: a module that attends, and the number of its
    earlier calls in the same pass. New layers are appended in the order of computation.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        part: Part,
        gradients: Gradients,
        layers: list[tuple[str, int]],
    ) -> None:
        self.layers = layers
        self.passes = 0
        self._heads: dict[tuple[str, int], dict[str, Tensor]] = {}  # statistics per head
        self._part = part
        self._gradients = gradients
        self._running: list[str] = []  # the stack of modules that are being computed
        self._thread: int | None = None
        self._calls: dict[str, int] = {}  # attention calls in this pass, by module
        self._during = ForwardPass(-1, None)
        self._tokens = None
        self._mode: contextlib.ExitStack | None = None
        self._hooks = contextlib.ExitStack()
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled; importing takes seconds
            self._hooks.enter_context(torch.compiler.set_stance("force_eager"))
        for name, module in modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            enter = functools.partial(self._enter, name)
            leave = functools.partial(self._leave, name)
            self._hooks.enter_context(
                module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
            )
            self._hooks.enter_context(
                module.register_forward_hook(leave, with_kwargs=True, always_call=True)
            )

    def close(self) -> None:
        self._hooks.close()

    def values(self) -> dict[str, float]:
        """Return all columns of this step, with a single synchronisation of the device."""
        columns: dict[str, Tensor] = {}
        for kind in STATISTICS:
            for layer, key in enumerate(self.layers):
                for head, value in enumerate(self._heads.get(key, {}).get(kind, ())):
                    columns[f"{kind}_{layer}_{head}"] = value
        columns |= self._gradients.summary([name for name, _ in self.layers])
        if not columns:
            return {}
        device = next(iter(columns.values())).device
        numbers = torch.stack([value.float().to(device) for value in columns.values()]).tolist()
        return dict(zip(columns, numbers, strict=True))

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        thread = threading.get_ident()
        if not self._running and torch.is_grad_enabled() and self._thread in (None, thread):
            self._thread = thread  # `DataParallel` runs copies of the model in other threads
            inputs = list(_inputs(args, kwargs))
            self._during = ForwardPass(
                self.passes, next((len(x) for _, x in inputs if x.ndim), None)
            )
            self._tokens = _tokens(inputs)
            self._calls = {}
            self.passes += 1
            self._mode = contextlib.ExitStack()
            self._mode.enter_context(_Calls(self))
        if self._mode is not None and thread == self._thread:
            self._running.append(name)

    def _leave(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._mode is None or threading.get_ident() != self._thread:
            return
        x = next((x for _, x in _inputs(args, kwargs)), None)
        if name in self._gradients.pieces and x is not None:
            self._gradients.linear(name, self._during, module, x, output)
        self._running.pop()
        if not self._running:
            self._mode.close()
            self._mode = None

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of PyTorch, and observe its arguments if it computes attention."""
        caller = self._running[-1]
        if function in READERS:
            self._look(caller, function, args, kwargs)
        if function is F.multi_head_attention_forward:
            return self._gradients.multi_head(caller, self._during, function, args, kwargs)
        return function(*args, **kwargs)

    def _look(self, caller: str, function: Any, args: Any, kwargs: Any) -> None:
        first = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        if first is None:
            return
        with quiet(first.device):
            scores = READERS[function](self._part, *args, **kwargs)
            if scores is None:
                return
            key = (caller, self._calls.get(caller, 0))
            self._calls[caller] = key[1] + 1
            if key not in self.layers:
                self.layers.append(key)
            # Later calls see another part of the batch, or recomputed activations.
            if key not in self._heads:
                self._heads[key] = head_statistics(scores, self._tokens)


class _Calls(TorchFunctionMode):
    """Send every call of a PyTorch function to an observation; inactive within the call."""

    def __init__(self, observation: Observation) -> None:
        super().__init__()
        self._observation = observation

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._observation.call(func, args, kwargs or {})


def _inputs(args: Any, kwargs: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors among a module's inputs, also from mappings, with their names if any."""
    named = [("", value) for value in args] + list(kwargs.items())
    for name, value in named:
        for inner, x in value.items() if isinstance(value, Mapping) else [(name, value)]:
            if isinstance(x, Tensor):
                yield str(inner), x


def _tokens(inputs: list[tuple[str, Tensor]]) -> Tensor | None:
    """Return the token ids among a model's inputs: integers of shape (n, length)."""
    whole = [
        (name, x)
        for name, x in inputs
        if x.ndim == 2
        and x.dtype in (torch.int64, torch.int32)
        and not any(word in name for word in _NOT_TOKENS)
    ]
    return dict(whole).get("input_ids", whole[0][1]) if whole else None
