"""Numbers for other people's viewers: TensorBoard, Weights & Biases. Neither needs a network."""

import importlib
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from .errors import InputError, unknown


class ScalarWriter(Protocol):
    """One run in a viewer."""

    def write(self, values: Mapping[str, Any], step: int) -> None:
        """The numbers of one step."""
        ...

    def close(self, summary: Mapping[str, Any], step: int) -> None:
        """The end, with what there is to say of the whole run."""
        ...


class _TensorBoard:
    """An event file under FOLDER/tensorboard; `tensorboard --logdir FOLDER/tensorboard` shows
    it."""

    def __init__(self, package: Any, folder: Path, run: str, config: Mapping[str, Any]) -> None:
        self._events = package.SummaryWriter(str(folder / "tensorboard" / run), write_to_disk=True)

    def write(self, values: Mapping[str, Any], step: int) -> None:
        for name, value in values.items():
            self._events.add_scalar(name, float(value), step)

    def close(self, summary: Mapping[str, Any], step: int) -> None:
        self.write(
            {
                name: value
                for name, value in summary.items()
                if isinstance(value, float) and not math.isnan(value)
            },
            step,
        )
        self._events.close()


class _WandB:
    """A run of Weights & Biases under FOLDER/wandb, offline unless WANDB_MODE says otherwise;
    `wandb sync` sends it."""

    def __init__(self, package: Any, folder: Path, run: str, config: Mapping[str, Any]) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        usual: dict[str, Any] = {
            "project": folder.resolve().name,
            "dir": str(folder),
            "reinit": "finish_previous",
        }
        self._run = package.init(
            **usual, id=run, name=run, config=config, mode=os.environ.get("WANDB_MODE", "offline")
        )

    def write(self, values: Mapping[str, Any], step: int) -> None:
        self._run.log({str(name): float(value) for name, value in values.items()}, step=step)

    def close(self, summary: Mapping[str, Any], step: int) -> None:
        self._run.summary.update(summary)
        self._run.finish()


_KINDS: dict[str, tuple[type[_TensorBoard] | type[_WandB], str, str]] = {
    "tensorboard": (
        _TensorBoard,
        "tensorboardX",
        "writing for TensorBoard needs tensorboardX: pip install tensorboardX",
    ),
    "wandb": (_WandB, "wandb", "writing for Weights & Biases needs wandb: pip install wandb"),
}
WRITERS = tuple(_KINDS)
Opener = Callable[[Path, str, Mapping[str, Any]], ScalarWriter]


def find_opener(name: str) -> Opener:
    """What opens a run in a viewer, given a folder, the run's name and its settings; an
    `InputError` where a package is missing."""
    if name not in _KINDS:
        raise unknown("writer", name, WRITERS)
    writer, package, missing = _KINDS[name]
    try:
        module = importlib.import_module(package)
    except ImportError:
        raise InputError(missing) from None
    return lambda folder, run, config: writer(module, folder, run, config)
