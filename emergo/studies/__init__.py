"""Studies: many runs, each identified, kept in files and never done twice; one executor, here or on Slurm."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._cells import cell_means, cell_summary, study_curves, study_law, study_table
    from ._curves import curve_frame
    from ._description import build_run, load_plugins
    from ._estimate import Estimate, estimate
    from ._executor import Executor, check_platform
    from ._folder import Plan, StudyFolder
    from ._live import Watcher, live_progress
    from ._outcomes import Failures, read_outcomes
    from ._plan import open_plan
    from ._records import Records, add_records, beside, merge_records, provenance_of, read_records, record_tables
    from ._runs import Runs
    from ._slurm import check_slurm, slurm_of, submit_plan
    from ._status import Status, study_status
    from ._store import Store, result_row
    from ._study import Fit, Slurm, Study
    from ._version_1 import migrate
    from ._writers import find_writer

__all__ = ["Estimate", "Executor", "Failures", "Fit", "Plan", "Records", "Runs", "Slurm", "Status", "Store", "Study"]
__all__ += ["StudyFolder", "Watcher", "add_records", "beside", "build_run", "cell_means", "cell_summary", "check_platform"]
__all__ += ["check_slurm", "curve_frame", "estimate", "find_writer", "live_progress", "load_plugins", "merge_records"]
__all__ += ["migrate", "open_plan", "provenance_of", "read_outcomes", "read_records", "record_tables", "result_row"]
__all__ += ["slurm_of", "study_curves", "study_law", "study_status", "study_table", "submit_plan"]

# What `emergo study status` needs must not wait for JAX and pandas: a name is looked for when it is asked for, in the modules
# that need neither first.
_LIGHT = ("_folder", "_outcomes", "_status", "_version_1")
_HEAVY = ("_cells", "_curves", "_study", "_estimate", "_records", "_slurm", "_writers", "_description", "_plan", "_live")


def __getattr__(name: str) -> Any:
    for module in (*_LIGHT, *_HEAVY) if name in __all__ else ():
        value = getattr(importlib.import_module(f".{module}", __name__), name, None)
        if value is not None:
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
