"""Fuzzing of checkpoints of a study that is really trained."""

import contextlib
import random
import shutil
from pathlib import Path

import jax
import pandas as pd

from emergo.store import StudyFolder
from emergo.study import Study
from emergo.training import CheckpointError
from emergo.training._checkpoint import load_checkpoint, previous
from emergo.training._scheduler import Scheduler

from ..study.tiny import quiet, tiny
from .mutations import Hung, damaged_bytes, put_in_place, watchdog


class TrainingLab:
    """A study with one unit in training, which has two checkpoints, and its right results."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.pristine = place / "training"
        grid = {"learning_rate": [1e-3, 2e-3]}
        self.study: Study = tiny(grid=grid, seeds=1, unit=2, steps=150, threshold=None)
        self.expected = self.study.run(place / "trained", progress=quiet)
        left = iter(range(4))

        def interrupt(now: object) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            self.study.run(self.pristine, progress=interrupt, checkpoint_seconds=0.0)
        [self.file] = StudyFolder(self.pristine).checkpoints.glob("*/*[0-9a-f].npz")
        assert previous(self.file).exists()

    def damage(self, number: int) -> tuple[Path, str]:
        """Damage the last checkpoint or both in a copy; return the last one and the damage."""
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
        return path, words

    def judge_read(self, number: int) -> tuple[str, str, str]:
        """Return the verdict on loading a damaged checkpoint."""
        path, words = self.damage(number)
        what = f"checkpoint: {words}"
        scheduler = Scheduler(self.study.runs, jax.devices(), None, None, lambda *_: None)
        try:
            with watchdog():
                load_checkpoint(path, scheduler)
        except CheckpointError as error:
            return ("named" if path.name in str(error) else "silent"), what, str(error)
        except Hung:
            return "hung", what, ""
        except Exception as error:
            return "crashed", what, repr(error)
        return ("harmless" if words == "gone" else "silent"), what, "it was read"

    def judge(self, number: int) -> tuple[str, str, str]:
        """Return the verdict on finishing the study, which must give the right results."""
        path, words = self.damage(number)
        what = f"training: {words}"
        lines: list[str] = []
        try:
            with watchdog(120):
                runs = self.study.run(path.parents[2], progress=quiet, say=lines.append, stale=0.0)
            pd.testing.assert_frame_equal(runs.table, self.expected.table)
            pd.testing.assert_frame_equal(runs.curves, self.expected.curves, check_exact=True)
        except Hung:
            return "hung", what, ""
        except Exception as error:
            return "wrong", what, repr(error)
        if any(path.name in line for line in lines):
            return "named", what, ""
        return ("harmless" if words == "gone" else "silent"), what, str(lines)
