"""Many runs, each identified, kept and never done twice."""

from ._grid import grid_runs
from ._records import Records, provenance_of, read_records, record_tables
from ._result import Result, curve_frame, result_row, run_from_json, run_json
from ._run import run_all
from ._store import Store

__all__ = [
    "Records",
    "Result",
    "Store",
    "curve_frame",
    "grid_runs",
    "provenance_of",
    "read_records",
    "record_tables",
    "result_row",
    "run_all",
    "run_from_json",
    "run_json",
]
