"""`emergo theory`."""

import dataclasses
from typing import Literal

from .._terminal import print_json, short


@dataclasses.dataclass(frozen=True)
class Theory:
    """One cell of the theory: the plateau, its growth rate and what the formulas say."""

    length: int
    """T, the number of tokens (at least 2)."""
    dim: int
    """d, the dimension of a token."""
    burst: int = 1
    """B, how often the relevant token appears in a sequence (smaller than length)."""
    repeat: float = 0.0
    """p, the probability that the relevant token is the special one, in [0, 1]."""
    flow: Literal["reduced", "exact", "full"] = "reduced"
    """reduced: the paper's; exact: with the model's own logits; full: the whole model, all its parameters."""
    threshold: float = 0.2
    """Share of the initial test loss that ends the plateau."""
    horizon: float | None = None
    """Largest flow time; by default 100 times (predicted plateau + dim)."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from ..theory import describe_cell

        cell = describe_cell(
            self.length, self.dim, self.burst, self.repeat, self.flow, threshold=self.threshold, horizon=self.horizon
        )
        if self.json:
            return print_json(cell)
        for name, value in cell.items():
            print(f"{name:14} {short(value)}")
