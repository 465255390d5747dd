"""Tables of plateaus and trajectories of flows, and a probe of the toy model."""

import dataclasses
import functools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array

from .. import theory
from ..core.errors import InputError
from ..measure import emergence
from ..models import ToyParameters
from ..tasks import Truth


@dataclasses.dataclass(frozen=True)
class Points:
    """Settings of figures whose presets differ only in the number of points."""

    points: int


def plateau_table(cell: theory.Cell, flow: theory.Flow = "reduced") -> pd.DataFrame:
    """Return one row per cell: its plateau under the flow, and two approximate formulas."""
    plateau = theory.plateau(cell, flow)
    sizes = {
        name: np.asarray(getattr(cell, name)).astype(int) for name in ("length", "dim", "burst")
    }
    measured = {
        "repeat": np.asarray(cell.repeat),
        "flow": flow,
        "plateau": plateau.time,
        "censored": plateau.censored,
    }
    formulas = {
        "predicted": theory.predicted_plateau(cell, flow),
        "escape_linear": theory.escape_time(cell, flow),
    }
    return pd.DataFrame(sizes | measured | formulas)


def follow(cell: theory.Cell, times: np.ndarray) -> tuple[theory.Trajectory, np.ndarray]:
    """Return the reduced flow at the given times, and its plateaus.

    Plateaus are read off the trajectory, which avoids compiling a second program. Raises
    `InputError` if the times end before a plateau does.
    """
    path = theory.trajectory(cell, times)
    rows = zip(
        path.time.reshape(-1, path.time.shape[-1]),
        path.test_loss.reshape(-1, path.time.shape[-1]),
        strict=True,
    )
    plateaus = [emergence(time, loss, theory.THRESHOLD * loss[0]) for time, loss in rows]
    if any(plateau.state != "reached" for plateau in plateaus):
        raise InputError("the times end before the plateau does; follow the flow for longer")
    return path, np.array([plateau.time for plateau in plateaus]).reshape(np.shape(cell.length))


def curve_table(cell: theory.Cell, path: theory.Trajectory) -> pd.DataFrame:
    """Return trajectories as a long table, one row per cell and time."""
    count = path.time.shape[-1]
    sizes = {name: np.repeat(np.ravel(getattr(cell, name)), count) for name in cell._fields}
    return pd.DataFrame(sizes | {name: np.ravel(getattr(path, name)) for name in path._fields})


@functools.cache
def toy_probe(burst: int = 1) -> Callable[[ToyParameters, Truth], dict[str, Array]]:
    """Return a probe of the toy model.

    It measures the exact expected loss (without sampling noise), the attention to the relevant
    tokens and the projection of W on W*.
    """

    def probe(params: ToyParameters, truth: Truth) -> dict[str, Array]:
        sizes = (params.logits.shape[0], truth.weights.shape[0], burst, 0.0)
        cell = theory.Cell(*(jnp.float32(size) for size in sizes))
        return {
            "loss": theory.population_loss(params, truth.weights, cell),
            "attention": jnp.sum(params.attention[-burst:]),
            "alignment": jnp.sum(params.weights * truth.weights) / jnp.linalg.norm(truth.weights),
        }

    return probe
