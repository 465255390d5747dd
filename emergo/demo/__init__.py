"""The demo: the idea of the package at laptop scale, on one page."""

from ._demo import DemoSettings, run_demo

__all__ = ["DemoSettings", "run_demo"]
