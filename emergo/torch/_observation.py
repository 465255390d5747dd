"""Observe one step of a training loop from inside the model.

Two tools are installed for the step and removed afterwards. Hooks on the modules track which module
is being computed. A `TorchFunctionMode`, active during the outermost module, intercepts every call
of a PyTorch function, under any name. Neither changes a result. Compiled code cannot be
intercepted, so this step runs without `torch.compile`.
"""

import contextlib
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from ..core.errors import InputError
from ._gradients import ForwardPass, Gradients, quiet
from ._packed import Packed
from ._paths import weight_of
from ._scores import READERS, SOFTMAX, Part, Products, Scores, alike, join, sources
from ._weights import Weights, tensors

# Parts of the names of integer inputs that are not tokens.
_NOT_TOKENS = ("mask", "label", "target", "position", "type")


Statistic = Callable[[Scores, Tensor | None], Mapping[str, Tensor]]
"""A function of scores and token ids that returns numbers per head by name."""

MOST_WAITING = 2**25
"""The most numbers that wait to be evaluated together, 128 MB in float32."""

# PyTorch's modules in these files compute no attention, and contain no other module that does.
_PLAIN = {f"torch.nn.modules.{name}" for name in ("dropout", "linear", "normalization", "sparse")}
_NOT_CALLED = (nn.ModuleList, nn.ModuleDict)


_OBSERVED = frozenset(READERS.keys() | SOFTMAX.keys() | {F.linear})


class _Waiting(NamedTuple):
    """Attention of one layer that has been seen and not evaluated."""

    key: tuple[str, int]
    heads: int
    found: Scores | Products
    versions: list[int]  # of the tensors of the model


class TokenInput(NamedTuple):
    """How a model was given token ids."""

    module: str  # the outermost module that was called
    place: int | str  # position or name of the argument
    tokens: Tensor
    vocabulary: int


class Observation:
    """Observations of one step; `close` removes the hooks.

    **Arguments:**

    - `layers` lists the known layers: a module that attends, and the number of its earlier calls in
      the same pass. New layers are appended in the order of computation.
    - `gradients`: None to observe passes without gradients.
    - `after`: called once, after the first pass.
    - `outer`: an observation between two passes, whose hooks are used meanwhile.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        part: Part,
        statistic: Statistic,
        gradients: Gradients | None,
        layers: list[tuple[str, int]],
        after: Callable[["Observation"], None] = lambda observation: None,
        outer: "Observation | None" = None,
    ) -> None:
        self.layers = layers
        self.passes = 0
        self.folded: dict[tuple[str, int], tuple[int, int]] = {}  # maps, and heads among them
        self.problem: str | None = None  # an error while looking, which must not end the training
        self.input: TokenInput | None = None
        self._seen: set[tuple[str, int]] = set()  # the layers that were observed
        self._waiting: list[_Waiting] = []
        self._size = 0  # the numbers that are kept from being freed
        # Layers with their numbers of heads, and their statistics for all heads.
        self._values: list[tuple[list[tuple[tuple[str, int], int]], Mapping[str, Tensor]]] = []
        self._part = part
        self._statistic = statistic
        self._gradients = gradients
        self._after = after
        self._running: list[str] = []  # the stack of modules that are being computed
        self._thread: int | None = None
        self._calls: dict[str, int] = {}  # attention calls in this pass, by module
        self._during = ForwardPass(-1, None)
        self._tokens: Tensor | None = None
        self._place: int | str = 0
        self._weights = Weights()
        self._mode: _Calls | None = None
        self._inner: Observation | None = None
        self._outer = outer
        self._eager = contextlib.ExitStack()
        self._hooks: list[RemovableHandle] = []
        self._linear_names: dict[int, str] = {}  # of linear maps, by the identity of the weight
        if outer is None:
            self._install(modules)
        else:
            outer._inner = self

    def _install(self, modules: Mapping[str, nn.Module]) -> None:
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled; importing takes seconds
            self._eager.enter_context(torch.compiler.set_stance("force_eager"))
        pieces = self._gradients.pieces if self._gradients is not None else {}
        for name, module in modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            if name in pieces:
                self._install_linear(name, module)
            if type(module) in _NOT_CALLED or (name and type(module).__module__ in _PLAIN):
                continue
            enter = functools.partial(self._enter, name)
            self._hooks.append(
                module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
            )
            self._hooks.append(module.register_forward_hook(self._leave, always_call=True))

    def _install_linear(self, name: str, module: nn.Module) -> None:
        # `nn.Linear` is recognised by its weight in calls of `F.linear`, which costs less than a
        # hook. Other modules need a hook.
        weight = module._parameters.get("weight")
        if type(module) is nn.Linear and weight is not None:
            self._linear_names[id(weight)] = name
            return
        hook = functools.partial(self._linear, name)
        self._hooks.append(module.register_forward_hook(hook, with_kwargs=True))

    def close(self) -> None:
        if self._outer is not None:
            self._outer._inner = None
        for hook in self._hooks:
            hook.remove()
        self._eager.close()

    @property
    def gradients(self) -> Gradients:
        assert self._gradients is not None
        return self._gradients

    def heads(self) -> Packed:
        """Return the statistics of all heads."""
        self._evaluate()
        tensors = [x for _, values in self._values for x in values.values()]
        groups = tuple(
            (tuple(values), tuple((self.layers.index(key), heads) for key, heads in layers))
            for layers, values in self._values
        )

        def columns(lists: list[list[float]]) -> dict[str, float]:
            numbers = list(itertools.chain(*lists))
            return {name: numbers[place] for name, place in _columns(groups)}

        return Packed(tensors, columns)

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._inner is not None:
            return self._inner._enter(name, module, args, kwargs)
        thread = threading.get_ident()
        if (
            not self._running
            and (self._gradients is None or torch.is_grad_enabled())
            and self._thread in (None, thread)
        ):
            self._thread = thread  # `DataParallel` runs copies of the model in other threads
            inputs = list(_inputs(args, kwargs))
            self._during = ForwardPass(
                self.passes, next((len(x) for _, x in inputs if x.ndim), None)
            )
            self._part = self._part._replace(batch=self._during.batch)
            self._place, self._tokens = _tokens(inputs)
            self._calls = {}
            self._weights = Weights()
            self.passes += 1
            if self._gradients is not None:
                self._gradients.begin_pass()
            self._mode = _Calls(self)
            self._mode.__enter__()
            self._follow()
        if self._mode is not None and thread == self._thread:
            self._running.append(name)

    def _linear(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._mode is None or threading.get_ident() != self._thread:
            return
        with torch._C.DisableTorchFunction():  # our own calls need no interception
            x = next((x for _, x in _inputs(args, kwargs)), None)
            if x is not None:
                self.gradients.linear(name, self._during, weight_of(module), x, output)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._inner is not None:
            return self._inner._leave(module, args, output)
        if self._mode is None or threading.get_ident() != self._thread:
            return
        self._running.pop()
        if not self._running:
            self._mode.__exit__(None, None, None)
            self._mode = None
            self._weights = Weights()
            self._look(self._evaluate)
            if self.passes == 1:
                self._after(self)

    def _follow(self) -> None:
        """Observe other functions than those of attention only while they matter."""
        assert self._mode is not None
        raw = self._gradients is not None and bool(self._gradients.raw)
        lookup = self._tokens is not None and self.input is None
        self._mode.everything = raw or bool(self._weights) or lookup

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of PyTorch, and observe its arguments if it computes attention."""
        caller = self._running[-1]
        gradients = self._gradients
        if function in READERS:
            self._look(lambda: self._attention(caller, READERS[function], args, kwargs))
        if gradients is not None and function is F.multi_head_attention_forward:
            return gradients.multi_head(caller, self._during, function, args, kwargs)
        result = function(*args, **kwargs)
        if function is F.linear and gradients is not None and len(args) > 1:
            name = self._linear_names.get(id(args[1]))
            if name is not None:
                gradients.linear(name, self._during, args[1], args[0], result)
        if gradients is not None and gradients.raw:
            self._look(lambda: gradients.raw_call(self._during, function, args, kwargs, result))
        if function in SOFTMAX:
            self._look(lambda: self._softmax(caller, SOFTMAX[function], args, kwargs, result))
        elif self._weights:
            self._look(lambda: self._weights.follow(function, args, kwargs, result))
        if self._tokens is not None and self.input is None:
            self._find_vocabulary(function, args)
        return result

    def _look(self, act: Callable[[], None]) -> None:
        """Observe; an unexpected error is reported, and does not end the training."""
        try:
            act()
        except InputError:  # of a `HeadBatch`
            raise
        except Exception as error:
            lines = str(error).splitlines() or [""]
            self.problem = f"{type(error).__name__}: {lines[0]}"

    def _read(self, reader: Any, args: Any, kwargs: Any) -> Scores | Products | None:
        inputs = tensors(args, kwargs)
        if not inputs:
            return None
        with quiet(inputs[0].device):
            return reader(self._part, *args, **kwargs)

    def _attention(self, caller: str, reader: Any, args: Any, kwargs: Any) -> None:
        scores = self._read(reader, args, kwargs)
        if scores is not None:
            self._found(caller, scores)

    def _softmax(self, caller: str, reader: Any, args: Any, kwargs: Any, result: Tensor) -> None:
        scores = self._read(reader, args, kwargs)
        if isinstance(scores, Scores):
            self._weights.add(result, scores, functools.partial(self._found, caller))
            self._follow()

    def _found(self, caller: str, found: Scores | Products) -> None:
        key = (caller, self._calls.get(caller, 0))
        self._calls[caller] = key[1] + 1
        if key not in self.layers:
            self.layers.append(key)
        if found.folded:
            self.folded[key] = (found.folded * found.n_sequences, found.folded)
        # Later calls see another part of the batch, or recomputed activations.
        if key not in self._seen:
            self._seen.add(key)
            kept = sources(found)
            versions = [x._version for x in kept]
            self._waiting.append(_Waiting(key, kept[0].shape[1], found, versions))
            self._size += sum(x.untyped_storage().nbytes() // x.element_size() for x in kept)
            if self._size > MOST_WAITING:
                self._evaluate()

    def _evaluate(self) -> None:
        """Compute the statistics of the layers that wait, for layers of equal shapes at once."""
        groups: dict[Any, list[_Waiting]] = {}
        for each in self._waiting:
            if each.versions == [x._version for x in sources(each.found)]:
                groups.setdefault(alike(each.found), []).append(each)
            else:
                self.problem = f"{each.key[0]} overwrites its queries, keys or scores"
        self._waiting = []
        self._size = 0
        for group in groups.values():
            with quiet(sources(group[0].found)[0].device):
                values = self._statistic(join([each.found for each in group]), self._tokens)
            self._values.append(([(each.key, each.heads) for each in group], values))

    def _find_vocabulary(self, function: Any, args: Any) -> None:
        """Note the size of the table in which the model looks up its input."""
        if self._tokens is None or len(args) < 2:
            return
        table, index = args[1::-1] if function is F.embedding else args[:2]
        found = function in (F.embedding, Tensor.__getitem__) and isinstance(table, Tensor)
        if found and isinstance(index, Tensor) and index.data_ptr() == self._tokens.data_ptr():
            module = self._running[0]
            self.input = TokenInput(module, self._place, self._tokens, len(table))
            self._follow()


@functools.lru_cache(maxsize=8)  # the names are the same in every row
def _columns(
    groups: tuple[tuple[tuple[str, ...], tuple[tuple[int, int], ...]], ...],
) -> list[tuple[str, int]]:
    """Return the columns of statistics and the places of their numbers, in the order of the log.

    A group has names of statistics, and layers with their numbers of heads.
    """
    names = [
        (kind, layer, head)
        for kinds, layers in groups
        for kind in kinds
        for layer, heads in layers
        for head in range(heads)
    ]
    order = {kind: i for i, kind in enumerate(dict.fromkeys(kind for kind, _, _ in names))}
    places = sorted(range(len(names)), key=lambda i: (order[names[i][0]], *names[i][1:]))
    return [("{}_{}_{}".format(*names[i]), i) for i in places]


class _Calls(TorchFunctionMode):
    """Send every call of a PyTorch function to an observation; inactive within the call."""

    def __init__(self, observation: Observation) -> None:
        super().__init__()
        self._observation = observation
        self.everything = False  # True if all functions are observed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Reading a shape is a call, too. Most calls are of no interest and must cost little.
        if self.everything or func in _OBSERVED:
            return self._observation.call(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _inputs(args: Any, kwargs: Any) -> Iterator[tuple[int | str, Tensor]]:
    """Yield the tensors among a module's inputs, also from mappings, with position or name."""
    for place, value in (*enumerate(args), *kwargs.items()):
        for inner, x in value.items() if isinstance(value, Mapping) else [(place, value)]:
            if isinstance(x, Tensor):
                yield inner, x


def _tokens(inputs: list[tuple[int | str, Tensor]]) -> tuple[int | str, Tensor | None]:
    """Return the token ids among a model's inputs: integers of shape (n, length)."""
    whole = [
        (place, x)
        for place, x in inputs
        if x.ndim == 2
        and x.dtype in (torch.int64, torch.int32)
        and not any(word in str(place) for word in _NOT_TOKENS)
    ]
    named = [pair for pair in whole if pair[0] == "input_ids"]
    return (named or whole or [(0, None)])[0]
