"""Finished runs for other people's viewers. Off by default."""

from collections.abc import Callable

from .._errors import unknown
from .._writers import WRITERS, find_opener
from ..engine import Result
from ._curves import curve_frame
from ._folder import StudyFolder
from ._store import result_row

Writer = Callable[[Result], None]  # gets every run as soon as it is finished


def find_writer(name: str, folder: StudyFolder) -> Writer:
    """The writer of this name (see `emergo._writers`), or "none"; each result becomes a run called by its identity."""
    if name == "none":
        return lambda result: None
    if name not in WRITERS:
        raise unknown("writer", name, ("none", *WRITERS))
    open_run = find_opener(name)

    def write(result: Result) -> None:
        folder.within(name)
        run = open_run(folder.path, result.run.identity, result_row(result))
        for entry in curve_frame(result.curves).to_dict("records"):
            step = int(entry.pop("step"))
            run.write({str(name): value for name, value in entry.items()}, step)
        run.close({"plateau": result.plateau.time, "state": result.state}, result.steps)

    return write
