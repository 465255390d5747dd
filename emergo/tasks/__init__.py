"""What there is to learn."""

from ._single_location import Batch, SingleLocation, Truth

__all__ = ["Batch", "SingleLocation", "Truth"]
