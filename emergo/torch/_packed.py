"""Numbers on a device that are read together, in a single transfer."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Packed(NamedTuple):
    """Tensors on a device, and a function that makes columns of their numbers on the host."""

    tensors: list[Tensor]
    columns: Callable[[list[list[float]]], dict[str, float]]


def read(*packs: Packed) -> list[dict[str, float]]:
    """Return the columns of each pack, with a single synchronisation of the device."""
    tensors = [x for pack in packs for x in pack.tensors]
    numbers: list[float] = []
    if tensors:
        device = tensors[0].device
        with torch.no_grad():
            flat = [x if x.ndim == 1 else x.reshape(-1) for x in tensors]
            numbers = torch.cat([x.to(device) for x in flat]).tolist()
    place = 0
    columns = []
    for pack in packs:
        lists = []
        for x in pack.tensors:
            lists.append(numbers[place : place + x.numel()])
            place += x.numel()
        columns.append(pack.columns(lists))
    return columns


def pack_numbers(values: Mapping[str, Any]) -> Packed:
    """Pack the tensors of one element whose numbers float32 holds exactly."""
    exact = (torch.float32, torch.bfloat16, torch.float16)
    tensors = {
        name: x
        for name, x in values.items()
        if isinstance(x, Tensor) and x.numel() == 1 and x.dtype in exact
    }

    def columns(lists: list[list[float]]) -> dict[str, float]:
        return {name: number for name, (number,) in zip(tensors, lists, strict=True)}

    return Packed(list(tensors.values()), columns)
