"""Export of numbers to TensorBoard and Weights & Biases, without a network."""

import functools
import importlib
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .errors import InputError, unknown


class _TensorBoard:
    """An event file in FOLDER/tensorboard, for `tensorboard --logdir FOLDER/tensorboard`.

    A run is written from its first step on, so that earlier event files of it are removed.
    """

    def __init__(
        self, package: Any, folder: Path, run: str, config: Mapping[str, Any], group: str = ""
    ) -> None:
        place = folder / "tensorboard" / run
        for earlier in place.glob("events.out.tfevents.*"):
            earlier.unlink()
        self._events = package.SummaryWriter(str(place), write_to_disk=True)

    def write(self, values: Mapping[str, Any], step: int) -> None:
        for name, value in _finite(values).items():
            self._events.add_scalar(name, value, step)

    def close(self, summary: Mapping[str, Any], step: int) -> None:
        self.write({name: v for name, v in summary.items() if isinstance(v, float)}, step)
        self._events.close()


class _WandB:
    """A run of Weights & Biases in FOLDER/wandb, for `wandb sync`.

    It is offline unless WANDB_MODE is set. Several runs of a process may be open at once.
    """

    def __init__(
        self, package: Any, folder: Path, run: str, config: Mapping[str, Any], group: str = ""
    ) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        self._run = package.init(
            project=folder.resolve().name,
            dir=str(folder),
            reinit="create_new",
            group=group or None,
            id=run,
            name=run,
            config=config,
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def write(self, values: Mapping[str, Any], step: int) -> None:
        self._run.log(_finite(values), step=step)

    def close(self, summary: Mapping[str, Any], step: int) -> None:
        self._run.summary.update(summary)
        self._run.finish()


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    """Leave out what is not measured, such as the training loss before the first step."""
    numbers = {str(name): float(value) for name, value in values.items()}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


ScalarWriter = _TensorBoard | _WandB
Opener = Callable[..., ScalarWriter]
_KINDS: dict[str, tuple[type[ScalarWriter], str]] = {
    "tensorboard": (_TensorBoard, "tensorboardX"),
    "wandb": (_WandB, "wandb"),
}
WRITERS = tuple(_KINDS)


def find_opener(name: str) -> Opener:
    """Return a function that opens a run in a viewer.

    The function takes a folder, the name of the run, its settings and optionally the name of its
    group. Raises `InputError` for an unknown viewer or a missing package.
    """
    if name not in _KINDS:
        raise unknown("writer", name, WRITERS)
    writer, package = _KINDS[name]
    try:
        module = importlib.import_module(package)
    except ImportError:
        raise InputError(f"the writer {name} needs {package}: pip install {package}") from None
    return functools.partial(writer, module)
