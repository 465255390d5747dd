"""`watch` as a callback of the Trainer of Hugging Face."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ._watch import Watch


class HuggingFaceWatch(TrainerCallback):
    """Watch the model of a Trainer: `Trainer(..., callbacks=[HuggingFaceWatch("log.csv")])`.

    The log has what the Trainer reports, in the row of the same step: loss, learning rate, metrics
    of evaluations. A run that is resumed from a checkpoint continues its log.

    **Arguments:**

    - `log`: a .csv file in an existing folder.
    - `every`: the number of steps per observation. By default the Trainer's `logging_steps`, so
      that every observation has a loss.
    - `options`: further options of [`emergo.torch.watch`][], such as `overwrite=True`.
    """

    def __init__(self, log: Path | str, *, every: int | None = None, **options: Any) -> None:
        self._log = log
        self._every = every
        self._options = options
        self._watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._close()  # a training that was interrupted
        steps = int(state.logging_steps or 0) if args.logging_strategy == "steps" else 0
        every = self._every or steps or 50
        first = int(state.global_step)
        options: dict[str, Any] = self._options | ({"start": first} if first else {})
        watch = Watch(kwargs["model"], self._log, every=every, **options)
        watch.begin(every - 1)  # the Trainer reports after steps that are multiples
        self._watch = watch

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._watch is not None:
            self._watch(step=state.global_step - 1)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Log the report of the Trainer; the summary at the end is left out."""
        if self._watch is None or state.global_step == 0:
            return
        numbers = {name: x for name, x in (logs or {}).items() if isinstance(x, int | float)}
        evaluated = {name: x for name, x in numbers.items() if name.startswith("eval_")}
        if evaluated:  # of the parameters after the step
            self._watch.report(state.global_step, evaluated)
        elif "loss" in numbers:
            self._watch.report(state.global_step - 1, numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._close()

    def _close(self) -> None:
        watch = self._watch
        self._watch = None
        if watch is not None:
            watch.__exit__()
