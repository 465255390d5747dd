"""Export of numbers to TensorBoard and Weights & Biases, without a network."""

import functools
import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .errors import InputError, unknown


class _TensorBoard:
    """An event file in FOLDER/tensorboard, for `tensorboard --logdir FOLDER/tensorboard`."""

    def __init__(self, package: Any, folder: Path, run: str, config: Mapping[str, Any]) -> None:
        self._events = package.SummaryWriter(str(folder / "tensorboard" / run), write_to_disk=True)

    def write(self, values: Mapping[str, Any], step: int) -> None:
        for name, value in values.items():
            self._events.add_scalar(name, float(value), step)

    def close(self, summary: Mapping[str, Any], step: int) -> None:
        numbers = {name: v for name, v in summary.items() if isinstance(v, float) and v == v}
        self.write(numbers, step)
        self._events.close()


class _WandB:
    """A run of Weights & Biases in FOLDER/wandb, for `wandb sync`.

    It is offline unless WANDB_MODE is set.
    """

    def __init__(self, package: Any, folder: Path, run: str, config: Mapping[str, Any]) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        self._run = package.init(
            project=folder.resolve().name,
            dir=str(folder),
            reinit="finish_previous",
            id=run,
            name=run,
            config=config,
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def write(self, values: Mapping[str, Any], step: int) -> None:
        self._run.log({str(name): float(value) for name, value in values.items()}, step=step)

    def close(self, summary: Mapping[str, Any], step: int) -> None:
        self._run.summary.update(summary)
        self._run.finish()


ScalarWriter = _TensorBoard | _WandB
Opener = Callable[[Path, str, Mapping[str, Any]], ScalarWriter]
_KINDS: dict[str, tuple[type[ScalarWriter], str]] = {
    "tensorboard": (_TensorBoard, "tensorboardX"),
    "wandb": (_WandB, "wandb"),
}
WRITERS = tuple(_KINDS)


def find_opener(name: str) -> Opener:
    """Return a function that opens a run in a viewer.

    The function takes a folder, the name of the run and its settings. Raises `InputError` for an
    unknown viewer or a missing package.
    """
    if name not in _KINDS:
        raise unknown("writer", name, WRITERS)
    writer, package = _KINDS[name]
    try:
        module = importlib.import_module(package)
    except ImportError:
        raise InputError(f"the writer {name} needs {package}: pip install {package}") from None
    return functools.partial(writer, module)
