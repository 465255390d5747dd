"""Operations of traced functions."""

from collections.abc import Iterator
from typing import Any

import jax


def operations_in(traced: Any) -> Iterator[Any]:
    """Yield the operations of a jaxpr and of its inner jaxprs."""
    for equation in getattr(traced, "jaxpr", traced).eqns:
        yield equation
        leaves = jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns"))
        for inner in leaves:
            if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                yield from operations_in(inner)
