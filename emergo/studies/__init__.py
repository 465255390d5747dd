"""Many runs, each identified, kept and never done twice."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._claims import Claims
    from ._estimate import Estimate, estimate
    from ._failures import Failures
    from ._folder import Plan, StudyFolder
    from ._grid import grid_runs
    from ._outcomes import Outcomes, read_outcomes
    from ._plan import groups_of, make_plan, open_study
    from ._records import Records, provenance_of, read_records, record_tables, write_records
    from ._result import Result, curve_frame, result_row, run_from_json, run_json
    from ._run import run_all, run_study
    from ._slurm import check_slurm, submit_study
    from ._status import Status, study_status
    from ._store import Store
    from ._study import Fit, Slurm, Study
    from ._tables import study_curves, study_law, study_table
    from ._tune import best_of, cell_means
    from ._work import Worker, check_here
    from ._writers import Writer, find_writer

# What `emergo study status` needs must not wait for JAX and pandas, so that a name is imported when it is asked for.
_PLACES = {
    "_claims": ["Claims"],
    "_estimate": ["Estimate", "estimate"],
    "_failures": ["Failures"],
    "_folder": ["Plan", "StudyFolder"],
    "_grid": ["grid_runs"],
    "_outcomes": ["Outcomes", "read_outcomes"],
    "_plan": ["groups_of", "make_plan", "open_study"],
    "_records": ["Records", "provenance_of", "read_records", "record_tables", "write_records"],
    "_result": ["Result", "curve_frame", "result_row", "run_from_json", "run_json"],
    "_run": ["run_all", "run_study"],
    "_slurm": ["check_slurm", "submit_study"],
    "_status": ["Status", "study_status"],
    "_store": ["Store"],
    "_study": ["Fit", "Slurm", "Study"],
    "_tables": ["study_curves", "study_law", "study_table"],
    "_tune": ["best_of", "cell_means"],
    "_work": ["Worker", "check_here"],
    "_writers": ["Writer", "find_writer"],
}


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            value = getattr(importlib.import_module(f".{module}", __name__), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Claims",
    "Estimate",
    "Failures",
    "Fit",
    "Outcomes",
    "Plan",
    "Records",
    "Result",
    "Slurm",
    "Status",
    "Store",
    "Study",
    "StudyFolder",
    "Worker",
    "Writer",
    "best_of",
    "cell_means",
    "check_here",
    "check_slurm",
    "curve_frame",
    "estimate",
    "find_writer",
    "grid_runs",
    "groups_of",
    "make_plan",
    "open_study",
    "provenance_of",
    "read_outcomes",
    "read_records",
    "record_tables",
    "result_row",
    "run_all",
    "run_from_json",
    "run_json",
    "run_study",
    "study_curves",
    "study_law",
    "study_status",
    "study_table",
    "submit_study",
    "write_records",
]
