"""Instruments: when attention became sparse, how surely we know, and the power laws of that time."""

from .._attention import attention_by_lag, attention_entropy, attention_mass
from .._tables import read_table, storable, write_table
from ._emergence import STATES, Emergence, State, emergence, past_threshold
from ._forecast import Forecast, forecast, forecast_curves, forecast_logs
from ._heads import Division, division, group_mass, head_similarity
from ._laws import Agreement, Law, Published, compare, fit_law, law_json
from ._logs import MEASURED, LoggedRun, measure_logs, read_logs
from ._offset import OffsetLaw, fit_offset
from ._stages import (
    Boundary,
    Drop,
    best_so_far,
    boundary_of,
    departure,
    early_stop,
    find_stages,
    plateau_share,
    stage_boundaries,
)
from ._terms import Term

__all__ = ["STATES", "Emergence", "State", "emergence", "past_threshold"]
__all__ += ["MEASURED", "LoggedRun", "measure_logs", "read_logs"]
__all__ += ["Forecast", "forecast", "forecast_curves", "forecast_logs"]
__all__ += ["Agreement", "Law", "OffsetLaw", "Published", "Term", "compare", "fit_law", "fit_offset", "law_json"]
__all__ += ["Boundary", "Drop", "best_so_far", "boundary_of", "departure", "early_stop", "find_stages", "plateau_share"]
__all__ += ["stage_boundaries"]
__all__ += ["Division", "attention_by_lag", "attention_entropy", "attention_mass", "division", "group_mass", "head_similarity"]
__all__ += ["read_table", "storable", "write_table"]
