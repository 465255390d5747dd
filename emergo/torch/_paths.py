"""Find the weights of queries and keys, and of values and outputs, and their layers."""

import fnmatch
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from ..core.errors import InputError, unknown

PATHS = ("query_key", "value_output")
WORDS = {"query_key": "queries and keys", "value_output": "values and outputs"}
_QUERY = ("query", "q_proj", "q", "wq", "to_q", "q_lin", "query_proj")
_KEY = ("key", "k_proj", "k", "wk", "to_k", "k_lin", "key_proj")
_VALUE = ("value", "v_proj", "v", "wv", "to_v", "v_lin", "value_proj")
_OUT = (
    *("out", "o_proj", "out_proj", "o", "wo", "to_out", "to_out.0", "out_lin", "c_proj", "proj"),
    *("dense", "output_proj"),
)
# Maps to queries, keys and values, in this order.
_FUSED = ("c_attn", "qkv", "qkv_proj", "Wqkv", "in_proj", "to_qkv")


class Piece(NamedTuple):
    """A part of a linear map, and its path."""

    owner: str  # the module that contains the maps of one attention
    path: str
    columns: slice  # part of the outputs


Pieces = dict[str, list[Piece]]
"""The pieces of each linear map, by the name of its module."""


def weight_of(module: nn.Module) -> Float[Tensor, "a b"] | None:
    """Return the weight of a linear map, such as `nn.Linear` or `Conv1D`; None for others."""
    weight = None if isinstance(module, nn.Embedding) else getattr(module, "weight", None)
    return weight if isinstance(weight, Tensor) and weight.ndim == 2 else None


def find_pieces(
    modules: Mapping[str, nn.Module], paths: Mapping[str, Sequence[str]] | None = None
) -> Pieces:
    """Find linear maps by their usual names, or by the user's `paths`, with `*` as a wildcard.

    The user may also name parameters that are not weights of linear modules. The maps of
    `nn.MultiheadAttention` are not modules; see [`Gradients.multi_head`][].
    """
    linear = {
        name: weight
        for name, module in modules.items()
        if (weight := weight_of(module)) is not None
    }
    if paths is not None:
        raw = find_raw(modules)
        return _chosen(linear | {name: raw[name] for name in raw if name not in linear}, paths)
    pieces: Pieces = {}

    def add(name: str, owner: str, path: str, columns: slice = slice(None)) -> None:
        pieces.setdefault(name, []).append(Piece(owner, path, columns))

    def child(owner: str, names: Iterable[str]) -> str | None:
        full = [".".join([*_parts(owner), name]) for name in names]
        return next((name for name in full if name in linear), None)

    for owner in modules:
        query, key, value, fused = (child(owner, names) for names in (_QUERY, _KEY, _VALUE, _FUSED))
        if fused and max(linear[fused].shape) == 3 * (third := min(linear[fused].shape)):
            add(fused, owner, "query_key", slice(2 * third))
            add(fused, owner, "value_output", slice(2 * third, None))
        elif query and key and value:
            add(query, owner, "query_key")
            add(key, owner, "query_key")
            add(value, owner, "value_output")
        else:
            continue
        out = child(owner, _OUT) or child(owner.rpartition(".")[0], ["output.dense"])
        if out:
            add(out, owner, "value_output")
    return pieces


def find_raw(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return the parameters that are not weights of linear modules, by name."""
    return {
        name: parameter
        for name, parameter in modules[""].named_parameters()
        if weight_of(modules[name.rpartition(".")[0]]) is not parameter
    }


def _chosen(linear: Mapping[str, Tensor], paths: Mapping[str, Sequence[str]]) -> Pieces:
    pieces: Pieces = {}
    for path, names in paths.items():
        if path not in PATHS:
            raise unknown("path", path, PATHS)
        for given in [names] if isinstance(names, str) else names:
            found = fnmatch.filter(linear, given.removesuffix(".weight"))
            if not found:
                raise InputError(f"paths: {unknown('linear map or parameter', given, linear)}")
            for name in found:
                pieces.setdefault(name, []).append(
                    Piece(name.rpartition(".")[0], path, slice(None))
                )
    return pieces


@functools.lru_cache(maxsize=8)  # the names are the same in every row
def layers_of(owners: tuple[str, ...], callers: tuple[str, ...]) -> Mapping[str, int]:
    """Assign a layer to each owner of linear maps.

    `callers` are the modules that computed attention, one per layer. The caller of an owner is the
    nearest related module: the owner itself, or a module inside or around it. A module that attends
    several times has one owner per call, or one owner for all calls. In the second case the
    gradient belongs to all calls and is reported with the first. Owners without a caller are left
    out.
    """
    of_caller: dict[str, list[str]] = {}
    for owner in owners:
        shared = {name: _shared(_parts(owner), _parts(name)) for name in callers}
        related = {
            name: depth
            for name, depth in shared.items()
            if depth == min(len(_parts(owner)), len(_parts(name)))
        }
        nearest = [name for name, depth in related.items() if depth == max(related.values())]
        if len(nearest) == 1:
            of_caller.setdefault(nearest[0], []).append(owner)
    layers: dict[str, int] = {}
    for caller, mine in of_caller.items():
        times = [layer for layer, name in enumerate(callers) if name == caller]
        if len(times) == len(mine):
            layers |= dict(zip(mine, times, strict=True))
        elif len(times) == 1 or len(mine) == 1:
            layers |= dict.fromkeys(mine, times[0])
    return layers


def _parts(name: str) -> list[str]:
    return name.split(".") if name else []


def _shared(one: Sequence[str], two: Sequence[str]) -> int:
    """Count the leading parts that two module names share."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False))
    return sum(1 for _ in same)
