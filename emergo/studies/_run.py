"""Asking for runs: those that are finished cost nothing, the rest are trained and kept."""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from .._errors import InputError
from .._files import named_disk
from .._terminal import say as say_line
from ..engine import History, Progress, Run, train
from ._folder import StudyFolder
from ._plan import open_study
from ._records import Records
from ._result import Result
from ._store import Store
from ._study import Study
from ._tables import study_table
from ._work import Worker, check_here, terminations


def run_all(
    runs: Sequence[Run],
    store: Store | Path | str | None = None,
    *,
    records: Records | None = None,
    curves: bool = True,
    width: int | None = None,
    checkpoint_seconds: float = 60.0,
    progress: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = say_line,
) -> list[Result]:
    """The results of runs, in their order.

    **Arguments:**

    - `store`: a folder of finished runs. What is there is read; what is not is trained, written as soon as it ends, and
      checkpointed on the way and when interrupted or told to end (SIGTERM); being killed loses at most a minute.
    - `records`: results that were trained elsewhere, used before the store.
    - `curves`: whether the curves are needed; without, records that hold only outcomes will do.
    - `say`: called with a line for each run of the store that cannot be read: it is trained again, and its folder kept under
      another name; by default on standard error.
    """
    kept = Store(store) if isinstance(store, Path | str) else store
    found: dict[str, Result] = {}
    for run in {run.identity: run for run in runs}.values():
        if records is not None and run in records and (records.has_curves(run) or not curves):
            found[run.identity] = records.read(run)
        elif kept is not None and os.path.exists(kept.folder / run.identity):
            try:
                found[run.identity] = kept.read(run, curves)
            except InputError as error:
                say(f"{error}; it is moved aside and trained again")

    def keep(history: History) -> None:
        result = Result.of(history)
        found[result.run.identity] = result
        if kept is not None:
            kept.write(result)

    missing = [run for run in runs if run.identity not in found]
    if missing:
        checkpoint = kept.folder / ".checkpoints" if kept is not None else None
        with contextlib.ExitStack() as saving:
            if kept is not None:
                saving.enter_context(named_disk(kept.folder))
                saving.enter_context(terminations())
            train(
                missing,
                width=width,
                checkpoint=checkpoint,
                checkpoint_seconds=checkpoint_seconds,
                on_end=keep,
                progress=progress,
            )
    return [found[run.identity] for run in runs]


def run_study(study: Study | Path | str, out: Path | str, **options: Any) -> pd.DataFrame:
    """Trains what is missing of a study in the folder `out`, beside any other process that does, and returns its table.

    `study` may be a TOML file. `options` are those of [`emergo.studies.Worker`][], such as `progress`.
    """
    made = study if isinstance(study, Study) else Study.read(study)
    folder = StudyFolder(out)
    check_here(folder, made, options.get("devices"))
    open_study(folder, made)
    Worker(folder, **options).run()
    return study_table(folder)
