"""Durable storage of studies, runs and records. It does not import JAX."""

from typing import TYPE_CHECKING, Any

from .folder import Plan, StudyFolder
from .outcomes import Failures, read_outcomes
from .status import Status, study_status

if TYPE_CHECKING:
    from .curves import curve_frame
    from .records import Records, merge_records, read_records
    from .store import Store

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
    """Import what needs pandas on first use, so that `emergo study status` is fast."""
    if name in __all__:
        from . import curves, records, store

        return next(
            vars(module)[name] for module in (curves, records, store) if hasattr(module, name)
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
