"""`watch` as a callback of Lightning, for `lightning` and `pytorch_lightning` alike."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from ._watch import Watch

# Both packages define the same classes twice. The one that is already in use counts.
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback() -> Any:
    for name in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return importlib.import_module(name).Callback
    raise ImportError("LightningWatch needs Lightning: pip install lightning")


Callback = _callback()


class LightningWatch(Callback):
    """Watch the module of a Trainer: `Trainer(..., callbacks=[LightningWatch("log.csv")])`.

    The log has the loss that `training_step` returns, and what the module logs itself. A run that
    is resumed from a checkpoint continues its log.

    **Arguments:**

    - `log`: a .csv file in an existing folder.
    - `every`: the number of steps per observation.
    - `options`: further options of [`emergo.torch.watch`][], such as `overwrite=True`.
    """

    def __init__(self, log: Path | str, *, every: int = 50, **options: Any) -> None:
        self._log = log
        self._every = every
        self._options = options
        self._watch: Watch | None = None
        self._step = 0
        self._trained: set[str] = set()  # names of metrics of training steps
        self._validated: set[str] = set()  # names of metrics of validations

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._step = trainer.global_step
        options = {"start": self._step} if self._step else {}
        watch = Watch(pl_module, self._log, every=self._every, **(self._options | options))
        watch.begin()
        self._watch = watch

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._watch is None or trainer.global_step == self._step:  # gradients accumulate
            return
        self._step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        known = trainer.callback_metrics.items()  # also of the last validation
        metrics = {name: x for name, x in known if name not in self._validated}
        self._trained |= metrics.keys()
        if loss is not None:
            metrics = {"loss": loss * trainer.accumulate_grad_batches} | metrics
        self._watch(step=self._step - 1, **metrics)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the metrics of a validation, at the step of the parameters that it used."""
        if self._watch is not None and not trainer.sanity_checking:
            known = trainer.callback_metrics.items()
            metrics = {name: x for name, x in known if name not in self._trained}
            self._validated |= metrics.keys()
            self._watch.report(self._step, metrics)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        watch = self._watch
        self._watch = None
        if watch is not None:
            watch.__exit__()
