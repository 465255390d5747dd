"""Export of finished runs to TensorBoard or Weights & Biases."""

from collections.abc import Callable

from ..core.errors import unknown
from ..core.writers import WRITERS, find_opener
from ..store.curves import curve_frame
from ..store.folder import StudyFolder
from ..training import Result
from .results import result_row

Writer = Callable[[Result], None]  # called with every run once it is finished


def find_writer(name: str, folder: StudyFolder) -> Writer:
    """Return a function that exports a result. The writer "none" does nothing.

    The viewer shows each result as a run named by its identity.
    """
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
