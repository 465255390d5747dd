"""Instruments: when attention became sparse, how surely we know, and the power laws of that time."""

from .._attention import attention_by_lag, attention_entropy, attention_mass
from ._emergence import STATES, Emergence, State, emergence, past_threshold
from ._heads import Division, division, group_mass, head_similarity
from ._laws import Agreement, Law, Published, compare, fit_law, law_json
from ._logs import measure_logs, read_table, storable, write_table
from ._offset import OffsetLaw, fit_offset
from ._stages import Boundary, Drop, best_so_far, boundary_of, departure, early_stop, find_stages, stage_boundaries
from ._terms import Term

__all__ = [
    "STATES",
    "Agreement",
    "Boundary",
    "Division",
    "Drop",
    "Emergence",
    "Law",
    "OffsetLaw",
    "Published",
    "State",
    "Term",
    "attention_by_lag",
    "attention_entropy",
    "attention_mass",
    "best_so_far",
    "boundary_of",
    "compare",
    "departure",
    "division",
    "early_stop",
    "emergence",
    "find_stages",
    "fit_law",
    "fit_offset",
    "group_mass",
    "head_similarity",
    "law_json",
    "measure_logs",
    "past_threshold",
    "read_table",
    "stage_boundaries",
    "storable",
    "write_table",
]
