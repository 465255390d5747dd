"""Measurements: emergence steps with intervals, power laws, stages of a curve and attention."""

from ..core.attention import attention_by_lag, attention_entropy, attention_mass
from ..core.heads import HEAD_NAMES, head_scores
from ..core.tables import read_table, write_table
from ._censored import fit_censored
from ._emergence import Direction, Emergence, State, emergence, past_threshold
from ._fit_table import fit_table
from ._head_classes import head_classes
from ._heads import division, group_mass, head_similarity
from ._laws import Law, Published, compare, fit_law, law_json
from ._offset import OffsetLaw, fit_offset
from ._stages import (
    Boundary,
    Drop,
    boundary_of,
    departure,
    early_stop,
    find_stages,
    plateau_share,
    stage_boundaries,
)
from ._terms import Term
from ._uncertainty import VERDICTS, Ratio, Verdict, all_hold, judge, mean_ratio, paired_ratio

__all__ = [
    "HEAD_NAMES",
    "VERDICTS",
    "Boundary",
    "Direction",
    "Drop",
    "Emergence",
    "Law",
    "OffsetLaw",
    "Published",
    "Ratio",
    "State",
    "Term",
    "Verdict",
    "all_hold",
    "attention_by_lag",
    "attention_entropy",
    "attention_mass",
    "boundary_of",
    "compare",
    "departure",
    "division",
    "early_stop",
    "emergence",
    "find_stages",
    "fit_censored",
    "fit_law",
    "fit_offset",
    "fit_table",
    "group_mass",
    "head_classes",
    "head_scores",
    "head_similarity",
    "judge",
    "law_json",
    "mean_ratio",
    "paired_ratio",
    "past_threshold",
    "plateau_share",
    "read_table",
    "stage_boundaries",
    "write_table",
]
