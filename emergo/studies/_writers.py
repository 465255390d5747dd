"""Finished runs for other people's viewers: TensorBoard, Weights & Biases. Off by default; neither needs a network."""

import importlib
import os
from typing import Any, Protocol, runtime_checkable

from .._errors import InputError, unknown
from ..engine import Result
from ._folder import StudyFolder
from ._store import curve_frame, result_row


@runtime_checkable
class Writer(Protocol):
    """Gets every run as soon as it is finished."""

    def write(self, result: Result) -> None: ...

    def close(self) -> None: ...


class Silence:
    """Writes nothing."""

    def write(self, result: Result) -> None:
        pass

    def close(self) -> None:
        pass


class TensorBoard:
    """One event file per run under OUT/tensorboard; `tensorboard --logdir OUT/tensorboard` shows them."""

    def __init__(self, folder: StudyFolder) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise InputError("writing for TensorBoard needs tensorboardX: pip install '.[log]' in a clone of emergo") from None
        self._open, self._folder = SummaryWriter, folder.path / "tensorboard"

    def write(self, result: Result) -> None:
        events = self._open(str(self._folder / result.run.identity), write_to_disk=True)
        frame = curve_frame(result.curves)
        for name in frame.columns.drop("step", errors="ignore"):
            for step, value in zip(frame["step"], frame[name], strict=True):
                events.add_scalar(name, float(value), int(step))
        if result.plateau.time == result.plateau.time:
            events.add_scalar("plateau", result.plateau.time, result.steps)
        events.close()

    def close(self) -> None:
        pass


class WeightsAndBiases:
    """Each as a run of Weights & Biases under OUT/wandb, offline unless WANDB_MODE says otherwise; `wandb sync` sends it."""

    def __init__(self, folder: StudyFolder) -> None:
        try:
            wandb = importlib.import_module("wandb")
        except ImportError:
            raise InputError("writing for Weights & Biases needs wandb: pip install wandb") from None
        os.environ.setdefault("WANDB_SILENT", "true")
        self._wandb, self._folder = wandb, folder.path
        self._project = str(folder.path.resolve().name)

    def write(self, result: Result) -> None:
        row: dict[str, Any] = result_row(result)
        run = self._wandb.init(
            project=self._project,
            id=result.run.identity,
            name=result.run.identity,
            dir=str(self._folder),
            config=row,
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="finish_previous",
        )
        for entry in curve_frame(result.curves).to_dict("records"):
            step = int(entry.pop("step"))
            run.log({str(name): float(value) for name, value in entry.items()}, step=step)
        run.summary["plateau"], run.summary["state"] = result.plateau.time, result.state
        run.finish()

    def close(self) -> None:
        pass


WRITERS: dict[str, Any] = {"none": Silence, "tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def find_writer(name: str, folder: StudyFolder) -> Writer:
    """The writer of this name for a study."""
    if name not in WRITERS:
        raise unknown("writer", name, WRITERS)
    return Silence() if name == "none" else WRITERS[name](folder)
