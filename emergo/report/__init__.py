"""What a person sees: the page of the demo, and laws written down and drawn."""

from ._demo import DemoSettings, run_demo
from ._fit import fit_table

__all__ = ["DemoSettings", "fit_table", "run_demo"]
