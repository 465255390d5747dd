"""When it happened, and how surely we know."""

from ._agreement import Agreement, Published, compare
from ._emergence import Direction, Emergence, emergence, running_median
from ._heads import Division, division, group_mass, head_similarity, lag_attention
from ._laws import Law, evaluate_law, fit_law, law_json
from ._logs import measure_logs, read_table, write_table
from ._offset import OffsetLaw, fit_offset
from ._stages import Boundary, Drop, boundary_of, departure, find_stages, stage_boundaries
from ._stopping import Stop, best_so_far, early_stop, excess_loss
from ._terms import Term, censored_rows, column, usable_rows

__all__ = [
    "Agreement",
    "Boundary",
    "Direction",
    "Division",
    "Drop",
    "Emergence",
    "Law",
    "OffsetLaw",
    "Published",
    "Stop",
    "Term",
    "best_so_far",
    "boundary_of",
    "censored_rows",
    "column",
    "compare",
    "departure",
    "division",
    "early_stop",
    "emergence",
    "evaluate_law",
    "excess_loss",
    "find_stages",
    "fit_law",
    "fit_offset",
    "group_mass",
    "head_similarity",
    "lag_attention",
    "law_json",
    "measure_logs",
    "read_table",
    "running_median",
    "stage_boundaries",
    "usable_rows",
    "write_table",
]
