"""`emergo train`."""

import dataclasses
import time
from pathlib import Path
from typing import Any, Literal

from .._errors import InputError
from .._terminal import console, duration, print_json


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a grid of Transformers at once and say when their attention became sparse.

    Options that take several values span the grid. The defaults are small, for two cores; the paper's are --layers 2 --heads 4
    --width 256 --learning-rate 1e-4 --steps 50000. Every run is kept in OUT as soon as it ends and is never trained again.
    After an interrupt the same command goes on.
    """

    length: tuple[int, ...] = (32,)
    """T, the number of tokens."""
    dim: tuple[int, ...] = (4, 8, 16)
    """d, the dimension of a token."""
    burst: tuple[int, ...] = (1,)
    """B, how often the relevant token appears in a sequence (smaller than length)."""
    repeat: tuple[float, ...] = (0.0,)
    """p, the probability that the relevant token is the special one, in [0, 1]."""
    learning_rate: tuple[float, ...] = (5e-4,)
    """Of the optimizer, constant."""
    seeds: int = 3
    """Runs of each cell of the grid; their seeds are 0, 1, ..."""
    position: Literal["random", "fixed", "last"] = "random"
    """Where the relevant token stands: drawn for each sequence, once for a run, or at the end."""
    indicator: bool = True
    """Whether tokens carry a feature that marks the relevant ones."""
    special: Literal["draw", "basis"] = "draw"
    """The special token: a draw of the law of the tokens, or the first basis vector."""
    layers: int = 1
    """Of the Transformer."""
    heads: int = 1
    """Of a layer; they share the width."""
    width: int = 64
    """Features of the stream."""
    mlp_factor: int = 4
    """Hidden features of an MLP over width."""
    norm: Literal["none", "pre", "post"] = "none"
    """Layer normalisation."""
    mask: Literal["none", "causal"] = "none"
    """Of the attention."""
    activation: Literal["relu", "gelu"] = "relu"
    """Of the MLPs."""
    attention: Literal["softmax", "linear", "biased", "positional"] = "softmax"
    """softmax; linear: without it; biased: with a learned logit for every pair of positions; positional: by these alone."""
    initial: Literal["pytorch", "xavier", "normal"] = "pytorch"
    """How parameters are drawn."""
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    """What is added to the tokens."""
    skip: bool = True
    """Skip connections."""
    mlp: bool = True
    """MLPs."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """An optimizer of Optax."""
    momentum: float = 0.0
    """Of sgd."""
    weight_decay: float = 0.01
    """Of adamw."""
    batch: int = 32
    """Sequences a step."""
    precision: Literal["fp32", "tf32", "bf16"] | None = None
    """Of matrix products; by default bf16 on a GPU and fp32 elsewhere."""
    steps: int = 5000
    """The most of a run."""
    threshold: float = 0.1
    """Test loss that ends the plateau, and the run."""
    beyond: float = 0.0
    """How much longer to train after that, as a share of the plateau."""
    together: int | None = None
    """Runs of one shape to train at once; by default what memory holds and cores need."""
    out: Path = Path("runs")
    """Folder of finished runs."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from .._files import output_folder
        from ..report import cell_rows, cell_table, live_progress
        from ..studies import Store, result_row, run_all

        begun, runs = time.monotonic(), self._runs()
        store = Store(output_folder(self.out))
        before = sum(run in store for run in runs)
        try:
            with live_progress(before) as show:
                results = run_all(runs, store, curves=False, width=self.together, progress=show)
        except KeyboardInterrupt as stop:
            finished = sum(run in store for run in runs)
            stop.add_note(f"{finished} of {len(runs)} runs are finished; the same command goes on from there")
            raise
        cells = cell_rows(results)
        if self.json:
            return print_json({"runs": [result_row(result) for result in results], "cells": cells, "out": str(self.out)})
        console(wide=True).print(cell_table(cells))
        there = f" ({before} were there)" if before else ""
        print(f"{len(runs)} runs{there}, {duration(time.monotonic() - begun)}; kept in {self.out}")

    def _runs(self) -> list[Any]:
        import jax

        from ..engine import Config, Optimizer, default_precision
        from ..models import Transformer
        from ..studies import grid_runs
        from ..tasks import SingleLocation

        axes = {name: getattr(self, name) for name in ("length", "dim", "burst", "repeat", "learning_rate")}
        for name, values in axes.items():
            if not values:
                raise InputError(f"--{name.replace('_', '-')} needs at least one value")
        for name in ("seeds", "together"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name} must be at least 1, got {value}")
        if self.threshold <= 0:
            raise InputError(f"--threshold must be positive: no test loss comes to {self.threshold:g}")
        if self.precision == "tf32" and jax.default_backend() == "cpu":
            raise InputError("precision tf32 is a GPU's; on a CPU use fp32")
        model = Transformer(
            self.layers,
            self.heads,
            self.width,
            self.mlp_factor,
            self.norm,
            self.mask,
            self.activation,
            self.attention,
            self.initial,
            self.positions,
            self.skip,
            self.mlp,
        )
        task = SingleLocation(2, 1, position=self.position, indicator=self.indicator, special=self.special)
        optimizer = Optimizer(self.optimizer, momentum=self.momentum, weight_decay=self.weight_decay)
        precision = self.precision or default_precision()
        base = Config(task, model, optimizer, self.batch, precision, self.steps, self.threshold, self.beyond)
        return grid_runs(base, self.seeds, **{name: tuple(dict.fromkeys(values)) for name, values in axes.items()})
