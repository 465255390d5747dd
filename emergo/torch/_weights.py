"""Tell attention from other softmaxes: attention weights are multiplied with values.

The result of a softmax is followed through dropout, masks and changes of shape or type. It is
attention if it enters a product over keys, `weights @ values`, where values do not depend on the
query. A gate is multiplied elementwise, and the weights of a mixture of experts are multiplied with
values of each query.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ._scores import Scores

_PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm"}
_OTHER = {*_PRODUCTS, "linear", "einsum"}
_PARTS = {"__getitem__", "narrow"}  # such as leaving out the key of an attention sink


class _Map:
    """A softmax, and what to do if it is attention."""

    def __init__(self, shape: tuple[int, ...], found: Callable[[], None]) -> None:
        self.shape = shape
        self.found = found
        self.used = False


class Weights:
    """The results of softmaxes in one forward pass; `found` is called for those of attention."""

    def __init__(self) -> None:
        # By identity. The tensors are kept, because an identity is used again after a deletion.
        self._maps: dict[int, tuple[Tensor, _Map]] = {}

    def __bool__(self) -> bool:
        return bool(self._maps)

    def add(self, result: Tensor, scores: Scores, found: Callable[[Scores], None]) -> None:
        self._maps[id(result)] = (result, _Map(tuple(result.shape), lambda: found(scores)))

    def follow(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Look at a call of a PyTorch function."""
        inputs = tensors(args, kwargs)
        known = next((i for i, x in enumerate(inputs) if id(x) in self._maps), None)
        if known is None:
            return
        weights, source = self._maps[id(inputs[known])]
        others = [x for i, x in enumerate(inputs) if i != known]
        name = getattr(function, "__name__", "")
        if name == "einsum":
            mixes = _einsum_mixes(args[0], known) if isinstance(args[0], str) else False
        else:
            mixes = name in _PRODUCTS and _matches(weights.shape, source.shape)
        if mixes and any(x.ndim > 2 and not isinstance(x, nn.Parameter) for x in others):
            if not source.used:
                source.used = True
                source.found()
        elif isinstance(result, Tensor) and _passes_on(name, weights, others, result):
            self._maps[id(result)] = (result, source)


def tensors(args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors among the arguments of a function, also from lists."""
    found = []
    for value in (*args, *kwargs.values()):
        values = value if isinstance(value, list | tuple) else [value]
        found += [x for x in values if isinstance(x, Tensor)]
    return found


def _matches(shape: tuple[int, ...], source: tuple[int, ...]) -> bool:
    """Return True for weights over (queries, keys), also transposed or without some keys."""
    queries, keys = source[-2:]
    rows, columns = shape[-2:] if len(shape) > 2 else (0, 0)
    return (rows == queries and columns <= keys) or (columns == queries and rows <= keys)


def _einsum_mixes(equation: str, known: int) -> bool:
    """Return True if keys are summed over, and no other operand has queries."""
    left, _, right = equation.replace(" ", "").replace("...", "").partition("->")
    terms = left.split(",")
    if len(terms[known]) < 2:
        return False
    query, key = terms[known][-2:]
    others = "".join(term for i, term in enumerate(terms) if i != known)
    return key in others and key not in right and query not in others


def _passes_on(name: str, weights: Tensor, others: list[Tensor], result: Tensor) -> bool:
    """Return True if the result still holds the weights: all of them, or some if cut out."""
    same = result.numel() == weights.numel()
    plain = all(x.dtype.is_floating_point is False or x.numel() < weights.numel() for x in others)
    return (same and plain and name not in _OTHER) or name in _PARTS
