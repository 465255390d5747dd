r"""Gradients of two halves of a batch from a single backward pass.

The gradient of a linear map's weight is a sum over the tokens of the batch, $\sum_t x_t g_t^\top$,
where $x_t$ is an input and $g_t$ the gradient of the output. Both are available during the step, so
the sum is computed for each half of the samples. Even samples are in one half, odd samples in the
other. If gradients are accumulated over several passes, the halves are swapped in every second
pass, so that batches of one sample work too.

Assumptions: the batch is the first axis, and the loss is a sum or a mean over samples.
"""

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ._packed import Packed
from ._paths import PATHS, WORDS, Piece, Pieces, layers_of
from ._weights import tensors

_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj_weight")


MOST_WAITING = 2**25
"""The most numbers that wait to be summed together, 128 MB in float32."""


class ForwardPass(NamedTuple):
    """A forward pass of a step; gradient accumulation has several passes per step."""

    number: int
    batch: int | None  # the number of samples


class _Product(NamedTuple):
    """The input of a linear map and the gradient of its output, which wait to be multiplied."""

    name: str
    samples: int
    turn: int
    tensors: tuple[Tensor, Tensor]
    versions: tuple[int, int]


Map = tuple[str, ...]
"""A linear map: its name, or for others the owner, the path and the name of the weight."""


class Gradients:
    """Gradient sums of one step, for each half of the batch.

    **Arguments:**

    - `pieces`: the linear maps to observe.
    - `multi_head`: observe the weights of `nn.MultiheadAttention`, too.
    - `raw`: parameters among the `pieces` that are not the weights of modules, by name.
    """

    def __init__(
        self, pieces: Pieces, multi_head: bool, raw: Mapping[str, Tensor] | None = None
    ) -> None:
        self.pieces = pieces
        self.raw = raw or {}
        self._multi_head = multi_head
        # By owner and path: whether all of its weights are frozen.
        self._frozen: dict[tuple[str, str], bool] = {}
        self._arrived = False  # True if any gradient has come back
        # Raw parameters, and tensors made of one alone, by identity: the tensor, the name of the
        # parameter, and a function that makes it from the parameter.
        self._made: dict[int, tuple[Tensor, str, Callable[[Tensor], Tensor]]] = {}
        self._waiting: list[_Product] = []
        self._size = 0  # the numbers in the tensors that wait
        # The sums of both halves of the batch. Maps of equal shapes share a tensor.
        self._sums: dict[tuple[Map, ...], Float[Tensor, "maps 2 *shape"]] = {}
        self._place: dict[Map, tuple[tuple[Map, ...], int]] = {}  # of a map in the sums
        self._pieces: dict[Map, list[Piece]] = {}
        self._owners: dict[str, None] = {}  # an ordered set, in the order of computation
        self._passes: dict[str, list[int]] = {}  # the passes with gradients, by map

    def linear(
        self, name: str, during: ForwardPass, weight: Tensor | None, x: Tensor, output: Any
    ) -> None:
        """Observe the output gradient of a linear map that was just computed."""
        observed = weight is not None and weight.requires_grad
        for piece in self.pieces[name]:
            self._note(piece.owner, piece.path, frozen=not observed)
        if not (observed and isinstance(output, Tensor) and output.requires_grad):
            return
        version = x._version
        x = x.detach()
        n = during.batch if during.batch and len(x) % during.batch == 0 else len(x)

        def backward(gradient: Tensor) -> None:
            turn = self._turn(name, during) % 2
            versions = (version, gradient._version)
            self._waiting.append(_Product(name, n, turn, (x, gradient), versions))
            self._size += x.numel() + gradient.numel()
            if self._size > MOST_WAITING:
                self._multiply()

        output.register_hook(backward)

    def _multiply(self) -> None:
        """Add the products that wait to the sums, for maps of equal shapes at once."""
        groups: dict[Any, list[_Product]] = {}
        calls: dict[str, int] = {}
        for each in self._waiting:
            if each.versions != tuple(x._version for x in each.tensors):
                continue  # overwritten in place
            call = calls[each.name] = calls.get(each.name, 0) + 1
            x, gradient = each.tensors
            kinds = (x.shape, gradient.shape, x.dtype, gradient.dtype, x.device)
            columns = tuple((p.columns.start, p.columns.stop) for p in self.pieces[each.name])
            key = (call, each.samples, each.turn, kinds, columns)
            groups.setdefault(key, []).append(each)
        self._waiting = []
        self._size = 0
        for group in groups.values():
            n = group[0].samples
            with quiet(group[0].tensors[0].device):
                x = _halves([each.tensors[0] for each in group], n)
                gradient = _halves([each.tensors[1] for each in group], n)
                sums = x.mT @ gradient
                if group[0].turn:
                    sums = sums.flip(1)
            for each in group:
                self._pieces[each.name,] = self.pieces[each.name]
            self._add(tuple((each.name,) for each in group), sums)

    def multi_head(
        self, owner: str, during: ForwardPass, compute: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Call `F.multi_head_attention_forward`, and observe the gradients of its weights.

        Its linear maps are not modules. When the gradient of the output arrives, the function is
        computed again with the same dropout, and differentiated for each half of the batch.
        """
        bound = inspect.signature(compute).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        weights = [
            name for name in _WEIGHTS if given.get(name) is not None and given[name].requires_grad
        ]
        if self._multi_head:
            for path in PATHS:
                self._note(owner, path, frozen=not weights)
        if not (self._multi_head and weights and given["query"].ndim == 3):
            return compute(*args, **kwargs)
        as_now = _surroundings(
            given["query"].device, random=given["training"] and given["dropout_p"] > 0
        )
        result = compute(*args, **kwargs)
        if not result[0].requires_grad:
            return result
        # Self-attention passes one tensor several times, which must stay one tensor.
        same = {id(value): value.detach() for value in given.values() if isinstance(value, Tensor)}
        inputs: dict[str, Any] = {name: same.get(id(value), value) for name, value in given.items()}

        def backward(gradient: Tensor) -> None:
            turn = self._turn(owner, during)
            leaves = {name: inputs[name].detach().requires_grad_() for name in weights}
            with as_now(), torch.enable_grad():
                output = compute(**(inputs | leaves))[0]
            samples = torch.arange(output.shape[1], device=output.device)[:, None]
            halves = [
                torch.autograd.grad(
                    output,
                    list(leaves.values()),
                    gradient * ((samples + turn) % 2 == half),
                    retain_graph=half == 0,
                )
                for half in range(2)
            ]
            for name, *both in zip(weights, *halves, strict=True):
                self._add_multi_head(owner, name, torch.stack(both).float())

        result[0].register_hook(backward)
        return result

    def begin_pass(self) -> None:
        """Forget the tensors that were made in an earlier forward pass."""
        same = lambda leaf: leaf  # noqa: E731
        self._made = {id(weight): (weight, name, same) for name, weight in self.raw.items()}

    def raw_call(
        self, during: ForwardPass, function: Callable[..., Any], args: Any, kwargs: Any, result: Any
    ) -> None:
        """Observe a call of a PyTorch function that may use a raw parameter.

        A function of the parameter alone, such as a transposition, makes another form of it. Any
        other function is taken for the linear map. When the gradient of its result arrives, it is
        computed again, and differentiated for each half of the batch.
        """
        inputs = tensors(args, kwargs)
        found = next((x for x in inputs if id(x) in self._made), None)
        if found is None or not isinstance(result, Tensor):
            return
        _, name, make = self._made[id(found)]

        def again(leaf: Tensor) -> Tensor:
            def put(value: Any) -> Any:
                if isinstance(value, list | tuple):
                    return type(value)(put(x) for x in value)
                if value is found:
                    return make(leaf)
                return value.detach() if isinstance(value, Tensor) else value

            return function(*put(tuple(args)), **{key: put(x) for key, x in kwargs.items()})

        if all(x is found for x in inputs):
            self._made[id(result)] = (result, name, again)
            return
        weight = self.raw[name]
        for piece in self.pieces[name]:
            self._note(piece.owner, piece.path, frozen=not weight.requires_grad)
        if not (weight.requires_grad and result.requires_grad):
            return
        before = weight._version

        def backward(gradient: Tensor) -> None:
            turn = self._turn(name, during)
            if weight._version != before:
                return
            leaf = weight.detach().requires_grad_()
            with torch.enable_grad():
                output = again(leaf)
            n = during.batch if during.batch and len(output) % during.batch == 0 else len(output)
            sample = torch.arange(len(output), device=output.device) * n // len(output)
            halves = []
            for half in range(2):
                mine = ((sample + turn) % 2 == half).reshape(-1, *[1] * (output.ndim - 1))
                halves += torch.autograd.grad(output, leaf, gradient * mine, retain_graph=half == 0)
            self._pieces[name,] = self.pieces[name]
            self._add(((name,),), torch.stack(halves).float()[None])

        result.register_hook(backward)

    def _note(self, owner: str, path: str, frozen: bool) -> None:
        self._owners[owner] = None
        self._frozen[owner, path] = frozen and self._frozen.get((owner, path), True)

    def missing(self, layer: int, callers: Sequence[str], paths: Sequence[str]) -> str:
        """Say why a layer has no gradients of some paths, in a few words."""
        owner_layers = layers_of(tuple(self._owners), tuple(callers))
        owners = [owner for owner, its in owner_layers.items() if its == layer]
        known = [(owner, path) for owner in owners for path in paths]
        frozen = [self._frozen[each] for each in known if each in self._frozen]
        if not frozen:
            maps = WORDS[paths[0]] if len(paths) == 1 else "queries, keys and values"
            return f"the maps to {maps} were not found; name them with paths="
        if all(frozen):
            return "the weights are frozen (requires_grad=False)"
        if not self._arrived:
            return "there was no backward pass before watch was called; call it after backward()"
        return "no gradient came back to these weights"

    def _add_multi_head(self, owner: str, name: str, halves: Tensor) -> None:
        if name == "in_proj_weight":
            parts = halves.tensor_split([halves.shape[1] * 2 // 3], 1)
            known = dict(zip(PATHS, parts, strict=True))
        else:
            known = {PATHS[name not in ("q_proj_weight", "k_proj_weight")]: halves}
        for path, part in known.items():
            key = (owner, path, name)
            self._pieces[key] = [Piece(owner, path, slice(None))]
            self._add((key,), part[None])

    def _turn(self, name: str, during: ForwardPass) -> int:
        """Count the earlier passes with gradients of the map.

        Activation checkpointing has passes without gradients, which do not count.
        """
        self._arrived = True
        passes = self._passes.setdefault(name, [])
        if during.number not in passes:
            passes.append(during.number)
        return passes.index(during.number)

    def _add(self, maps: tuple[Map, ...], sums: Float[Tensor, "maps 2 *shape"]) -> None:
        if maps in self._sums:  # an earlier pass
            self._sums[maps] += sums
        elif not self._place.keys() & set(maps):
            self._sums[maps] = sums
            self._place |= {each: (maps, i) for i, each in enumerate(maps)}
        else:
            for i, each in enumerate(maps):
                group, place = self._place.get(each, ((), 0))
                if group:
                    self._sums[group][place] += sums[i]
                else:
                    self._add((each,), sums[i : i + 1])

    def summary(self, callers: Sequence[str]) -> Packed:
        """Return the gradient norm and the cosine between both halves, per layer and path."""
        self._multiply()
        layers = layers_of(tuple(self._owners), tuple(callers))
        tensors: list[Tensor] = []
        places: list[tuple[int, str] | None] = []  # layer and path of each map in the tensors
        with torch.no_grad():
            for maps, sums in self._sums.items():
                for i, first in enumerate(self._pieces[maps[0]]):
                    halves = sums if first.columns == slice(None) else sums[..., first.columns]
                    halves = halves.flatten(2)
                    norm = torch.linalg.vector_norm
                    tensors += [norm(halves, dim=2), norm(halves.sum(1), dim=1)]
                    pieces = [self._pieces[each][i] for each in maps]
                    places += [
                        (layers[piece.owner], piece.path) if piece.owner in layers else None
                        for piece in pieces
                    ]

        def columns(lists: list[list[float]]) -> dict[str, float]:
            # Squared norms of both halves, and of their sum.
            halves = itertools.chain(*lists[::2])
            totals: dict[tuple[int, str], list[float]] = {}
            wholes = itertools.chain(*lists[1::2])
            for place, *norms in zip(places, halves, halves, wholes, strict=True):
                if place is not None:
                    total = totals.setdefault(place, [0.0] * 3)
                    for j, norm in enumerate(norms):
                        total[j] += norm * norm
            values: dict[str, float] = {}
            for (layer, path), (one, two, whole) in sorted(totals.items()):
                size = 2 * math.sqrt(one) * math.sqrt(two)
                agreement = (whole - one - two) / size if size else math.nan
                values[f"gradient_{path}_{layer}"] = math.sqrt(whole)
                values[f"agreement_{path}_{layer}"] = agreement
            return values

        return Packed(tensors, columns)


def _halves(rows: list[Tensor], n: int) -> Float[Tensor, "maps 2 rows width"]:
    """Stack tensors, with the rows of even and of odd samples apart."""
    width = rows[0].shape[-1]
    if n % 2:  # a sample of zeros makes the number even
        rows = [F.pad(x.reshape(n, -1, width), (0, 0, 0, 0, 0, 1)) for x in rows]
        n += 1
    sample = rows[0].numel() // n
    # A view with the axes (half, samples of the half, a sample), in one operation.
    apart = [x.contiguous().as_strided((2, n // 2, sample), (sample, 2 * sample, 1)) for x in rows]
    return torch.stack(apart).view(len(rows), 2, -1, width).float()


def quiet(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Compute without gradients and without `autocast`."""
    if not torch.is_autocast_enabled(device.type):
        return torch.no_grad()
    context = contextlib.ExitStack()
    context.enter_context(torch.no_grad())
    context.enter_context(torch.autocast(device.type, enabled=False))
    return context


def _surroundings(
    device: torch.device, random: bool
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context with the current autocast settings and, if `random`, random state."""
    mixed: dict[str, Any] = {
        "enabled": torch.is_autocast_enabled(device.type),
        "dtype": torch.get_autocast_dtype(device.type),
        "cache_enabled": False,
    }
    on_cuda = [device] if random and device.type == "cuda" else []
    states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, on_cuda)]

    @contextlib.contextmanager
    def surroundings() -> Iterator[None]:
        with torch.autocast(device.type, **mixed), torch.random.fork_rng(on_cuda, enabled=random):
            if random:
                torch.set_rng_state(states[0])
            for each, state in zip(on_cuda, states[1:], strict=True):
                torch.cuda.set_rng_state(state, each)
            yield

    return surroundings
