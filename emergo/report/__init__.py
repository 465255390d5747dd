"""What a person sees: the page of the demo, pages of studies, and laws written down and drawn."""

from ._demo import DemoSettings, run_demo
from ._fit import fit_table
from ._study import report_studies

__all__ = ["DemoSettings", "fit_table", "report_studies", "run_demo"]
