"""What there is to learn."""

from ._single_location import Batch, Position, SingleLocation, Special, Traits, Truth

__all__ = ["Batch", "Position", "SingleLocation", "Special", "Traits", "Truth"]
