"""Finished runs for other people's viewers: TensorBoard, Weights & Biases. Off by default; neither needs a network."""

import importlib
import os
from collections.abc import Callable
from typing import Any

from .._errors import InputError, unknown
from ..engine import Result
from ._curves import curve_frame
from ._folder import StudyFolder
from ._store import result_row

Writer = Callable[[Result], None]  # gets every run as soon as it is finished


def _tensorboard(folder: StudyFolder) -> Writer:
    """One event file per run under OUT/tensorboard; `tensorboard --logdir OUT/tensorboard` shows them."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise InputError("writing for TensorBoard needs tensorboardX: pip install '.[log]' in a clone of emergo") from None

    def write(result: Result) -> None:
        events = SummaryWriter(str(folder.within("tensorboard") / result.run.identity), write_to_disk=True)
        frame = curve_frame(result.curves)
        for name in frame.columns.drop("step", errors="ignore"):
            for step, value in zip(frame["step"], frame[name], strict=True):
                events.add_scalar(name, float(value), int(step))
        if result.plateau.time == result.plateau.time:
            events.add_scalar("plateau", result.plateau.time, result.steps)
        events.close()

    return write


def _wandb(folder: StudyFolder) -> Writer:
    """Each as a run of Weights & Biases under OUT/wandb, offline unless WANDB_MODE says otherwise; `wandb sync` sends it."""
    try:
        wandb = importlib.import_module("wandb")
    except ImportError:
        raise InputError("writing for Weights & Biases needs wandb: pip install wandb") from None
    os.environ.setdefault("WANDB_SILENT", "true")
    folder.within("wandb")
    usual: dict[str, Any] = {"project": folder.path.resolve().name, "dir": str(folder.path), "reinit": "finish_previous"}

    def write(result: Result) -> None:
        mode, name = os.environ.get("WANDB_MODE", "offline"), result.run.identity
        run = wandb.init(**usual, id=name, name=name, config=result_row(result), mode=mode)
        for entry in curve_frame(result.curves).to_dict("records"):
            step = int(entry.pop("step"))
            run.log({str(name): float(value) for name, value in entry.items()}, step=step)
        run.summary["plateau"], run.summary["state"] = result.plateau.time, result.state
        run.finish()

    return write


_WRITERS: dict[str, Callable[[StudyFolder], Writer]] = {
    "none": lambda folder: lambda result: None,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}


def find_writer(name: str, folder: StudyFolder) -> Writer:
    if name not in _WRITERS:
        raise unknown("writer", name, _WRITERS)
    return _WRITERS[name](folder)
