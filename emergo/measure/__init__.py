"""When it happened, and how surely we know."""

from ._agreement import Agreement, Published, compare
from ._emergence import Direction, Emergence, emergence, running_median
from ._laws import Law, evaluate_law, fit_law, law_json
from ._logs import measure_logs, read_table, write_table
from ._offset import OffsetLaw, fit_offset
from ._terms import Term, censored_rows, column, usable_rows

__all__ = [
    "Agreement",
    "Direction",
    "Emergence",
    "Law",
    "OffsetLaw",
    "Published",
    "Term",
    "censored_rows",
    "column",
    "compare",
    "emergence",
    "evaluate_law",
    "fit_law",
    "fit_offset",
    "law_json",
    "measure_logs",
    "read_table",
    "running_median",
    "usable_rows",
    "write_table",
]
