"""What a person sees: law plots, the HTML report and tables of training."""

from ._demo import Demo, DemoSettings, compute_demo, run_demo
from ._fit import fit_table
from ._law_plot import law_plot
from ._live import cell_rows, cell_table, duration, live_progress, progress_line, progress_table
from ._page import Page

__all__ = [
    "Demo",
    "DemoSettings",
    "Page",
    "cell_rows",
    "cell_table",
    "compute_demo",
    "duration",
    "fit_table",
    "law_plot",
    "live_progress",
    "progress_line",
    "progress_table",
    "run_demo",
]
