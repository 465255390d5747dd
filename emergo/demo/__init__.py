"""The demo: the question and the method of the package on one page, in under a minute."""

from ._demo import DemoSettings, run_demo

__all__ = ["DemoSettings", "run_demo"]
