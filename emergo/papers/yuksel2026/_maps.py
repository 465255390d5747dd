"""Attention maps as in the paper: query against key, with heads as colours, at a few steps."""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.ticker import MaxNLocator

from ...core.contract import Batch, Output
from ...core.plotting import BLACK
from ...core.pytree import Pytree
from ...tasks import Groups
from ._chains import ChainRun
from ._contexts import check_numbers

Maps = Float[np.ndarray, "heads queries keys"]


class AttentionMaps(Pytree):
    """A probe: the attention of the first layer between the last positions, as `attention_map`.

    The last positions are those whose outputs are compared. The map has the axes (head, query, key)
    and is averaged over sequences. It is NaN except at the first evaluation after each of the
    `map_steps`, so that records stay small.
    """

    reads: ClassVar[tuple[str, ...]] = ("layers.0.pattern",)

    map_steps: tuple[int, ...]

    def __post_init__(self) -> None:
        check_numbers("AttentionMaps.map_steps", self.map_steps, "steps of training", 0)

    def __call__(
        self, params: Any, output: Output, batch: Batch, truth: Any, step: Any
    ) -> dict[str, Array]:
        taps = output.taps or {}
        last = batch.target.shape[1]
        block = taps["layers.0.pattern"][:, :, -last:, -last:].mean(0)
        # Evaluations are 5 steps apart, or 2% in multiples of 5: one lies within that of each step.
        due = jnp.any(
            jnp.stack([(step >= s) & (step < s + max(5, s // 50 // 5 * 5)) for s in self.map_steps])
        )
        return {"attention_map": jnp.where(due, block, jnp.nan)}


def kept_maps(run: ChainRun) -> dict[int, Maps]:
    """Return the maps of a run that are not NaN, by step."""
    maps = run["attention_map"]
    kept = np.isfinite(maps).all((1, 2, 3))
    return {int(at): one for at, one in zip(run["step"][kept], maps[kept], strict=True)}


def blended(maps: Maps, colours: Sequence[Any], full: float) -> Float[np.ndarray, "queries keys 3"]:
    """Blend the maps of all heads into one picture.

    Each head subtracts the complement of its colour from white, all of it at the weight `full`.
    """
    ink = 1 - np.array([to_rgb(colour) for colour in colours])
    return np.clip(1 - np.einsum("hqk,hc->qkc", np.minimum(maps / full, 1), ink), 0, 1)


def draw_blended(
    axes: Axes, maps: Maps, colours: Sequence[Any], groups: Groups, full: float
) -> None:
    """Draw a map, with the edges of disjoint groups as staircases."""
    count = maps.shape[1]
    edges = (*groups.starts, groups.window) if groups.disjoint else ()
    axes.imshow(blended(maps, colours, full), interpolation="nearest")
    for lag in edges:  # the edge between the keys `lag` and `lag - 1` positions before a query
        queries = np.arange(lag, count)
        x = np.repeat(queries - lag + 0.5, 2)
        y = np.stack([queries - 0.5, queries + 0.5], 1).ravel()
        axes.plot(x, y, color=BLACK, lw=0.6)
    axes.set(xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -0.5))
    axes.grid(visible=False)
    axes.tick_params(labelsize=6)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, integer=True))
