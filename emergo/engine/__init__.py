"""Learning itself: many runs as one compiled program."""

from ._toy import Curves, Draws, Probe, train_toy

__all__ = ["Curves", "Draws", "Probe", "train_toy"]
