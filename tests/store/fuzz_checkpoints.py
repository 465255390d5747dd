"""Checkpoints of a study that is really trained, damaged; `fuzz.py` draws how."""

import contextlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from emergo.store import StudyFolder
from emergo.study import Executor, Study
from emergo.training import CheckpointError
from emergo.training._checkpoint import load_checkpoint, previous
from emergo.training._scheduler import Scheduler

from ..study.tiny import quiet, tiny
from .mutations import Hung, damaged_bytes, put_in_place, watchdog


class TrainingLab:
    """A study with one unit in training: two checkpoints of it, and the table that it ends with."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.pristine = place / "training"
        self.study: Study = tiny(
            grid={"learning_rate": [1e-3, 2e-3]}, seeds=1, unit=2, steps=150, threshold=None
        )
        self.expected = self.study.run(place / "trained", progress=quiet)
        self.study.open(StudyFolder(self.pristine))
        with contextlib.suppress(KeyboardInterrupt):
            Executor(
                StudyFolder(self.pristine), checkpoint_seconds=0.0, progress=self._stop(4)
            ).run()
        [self.file] = StudyFolder(self.pristine).checkpoints.glob("*/*[0-9a-f].npz")
        assert previous(self.file).exists()

    @staticmethod
    def _stop(after: int) -> Callable[[Any], None]:
        left = iter(range(after))

        def progress(now: Any) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        return progress

    def scheduler(self) -> Scheduler:
        return Scheduler(self.study.runs, jax.devices(), None, None, lambda *_: None)

    def damage(self, number: int) -> tuple[random.Random, Path, str]:
        """A copy of the folder with a damaged checkpoint: the last one, or both."""
        rng = random.Random(number)
        folder = self.place / "in training"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.pristine, folder)
        path = folder / self.file.relative_to(self.pristine)
        words = ""
        for file in (previous(path), path) if rng.random() < 0.2 else (path,):
            if rng.random() < 0.3:
                words = put_in_place(rng, file, self.place)
            else:
                words, data = damaged_bytes(rng, file.read_bytes())
                file.write_bytes(data)
        return rng, path, words

    def judge_read(self, number: int) -> tuple[str, str, str]:
        _, path, words = self.damage(number)
        try:
            with watchdog():
                load_checkpoint(path, self.scheduler())
        except CheckpointError as error:
            return (
                ("named" if path.name in str(error) else "silent"),
                f"checkpoint: {words}",
                str(error),
            )
        except Hung:
            return "hung", f"checkpoint: {words}", ""
        except Exception as error:
            return "crashed", f"checkpoint: {words}", repr(error)
        return ("harmless" if words == "gone" else "silent"), f"checkpoint: {words}", "it was read"

    def judge(self, number: int) -> tuple[str, str, str]:
        """Goes on from the checkpoint before the last, or anew, and ends bit for bit as without."""
        _, path, words = self.damage(number)
        lines: list[str] = []
        try:
            with watchdog(120):
                runs = self.study.run(path.parents[2], progress=quiet, say=lines.append, stale=0.0)
            pd.testing.assert_frame_equal(runs.table, self.expected.table)
            pd.testing.assert_frame_equal(runs.curves, self.expected.curves, check_exact=True)
        except Hung:
            return "hung", f"training: {words}", ""
        except Exception as error:
            return "wrong", f"training: {words}", repr(error)
        named = any(path.name in line for line in lines)
        return (
            ("named" if named else "harmless" if words == "gone" else "silent"),
            f"training: {words}",
            str(lines),
        )
