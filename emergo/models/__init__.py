"""Who learns."""

from ._toy import ToyAttention

__all__ = ["ToyAttention"]
