"""Durable storage of studies, runs and records. It does not import JAX."""

import importlib
from typing import TYPE_CHECKING, Any

from .folder import Plan, StudyFolder
from .outcomes import Failures, read_outcomes
from .status import Status, study_status

if TYPE_CHECKING:
    from .curves import curve_frame
    from .records import Records, merge_records, read_records
    from .store import Store

# These modules need pandas. They are imported on first use, so that `emergo study status` is fast.
_MODULE_OF = {
    "Records": "records",
    "Store": "store",
    "curve_frame": "curves",
    "merge_records": "records",
    "read_records": "records",
}
__all__ = [
    "Failures",
    "Plan",
    "Records",
    "Status",
    "Store",
    "StudyFolder",
    "curve_frame",
    "merge_records",
    "read_outcomes",
    "read_records",
    "study_status",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
