"""What a person sees: law plots and the HTML report."""

from ._demo import Demo, DemoSettings, compute_demo, run_demo
from ._fit import fit_table
from ._law_plot import law_plot
from ._page import Page

__all__ = ["Demo", "DemoSettings", "Page", "compute_demo", "fit_table", "law_plot", "run_demo"]
