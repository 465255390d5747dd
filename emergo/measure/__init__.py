"""Instruments: when attention became sparse, how surely we know, and the power laws of that time."""

from .._attention import attention_by_lag, attention_entropy, attention_mass
from ._agreement import Agreement, Published, compare
from ._emergence import STATES, Direction, Emergence, State, emergence, past_threshold, running_median
from ._heads import Division, division, group_mass, head_similarity
from ._laws import Law, evaluate_law, fit_law, law_json
from ._logs import measure_logs, read_table, storable, write_table
from ._offset import OffsetLaw, fit_offset
from ._stages import Boundary, Drop, boundary_of, departure, find_stages, stage_boundaries
from ._stopping import Stop, best_so_far, early_stop, excess_loss
from ._terms import Term, censored_rows, column, usable_rows

__all__ = [
    "STATES",
    "Agreement",
    "Boundary",
    "Direction",
    "Division",
    "Drop",
    "Emergence",
    "Law",
    "OffsetLaw",
    "Published",
    "State",
    "Stop",
    "Term",
    "attention_by_lag",
    "attention_entropy",
    "attention_mass",
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
    "law_json",
    "measure_logs",
    "past_threshold",
    "read_table",
    "running_median",
    "stage_boundaries",
    "storable",
    "usable_rows",
    "write_table",
]
