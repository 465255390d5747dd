"""What a person sees: pages, and laws written down and drawn."""

from ._demo import DemoSettings, compute_demo, run_demo
from ._fit import fit_table
from ._page import Page

__all__ = ["DemoSettings", "Page", "compute_demo", "fit_table", "run_demo"]
