"""A small Transformer, and its attention while it becomes sparse."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..models import Transformer
from ..tasks import SingleLocation
from ..training import Config, Optimizer, Progress, Run, Trained, train
from ._threads import Tell


class Watched(NamedTuple):
    """The test loss of a run, and the attention of its last position, at every evaluation."""

    steps: Int[np.ndarray, " frames"]
    loss: Float[np.ndarray, " frames"]
    maps: Float[np.ndarray, "frames heads sequences length"]
    relevant: Int[np.ndarray, " sequences"]  # the relevant position of each sequence
    plateau: float

    @property
    def share(self) -> Float[np.ndarray, " frames"]:
        """Attention to the relevant token, of the head in which it is largest at the end."""
        here = self.maps[:, :, np.arange(len(self.relevant)), self.relevant].mean(-1)
        return here[:, here[-1].argmax()]

    def data(self) -> dict[str, Any]:
        """Return plain data for the page; attention in percent, the resolution of shades."""
        return {
            "steps": self.steps.tolist(),
            "loss": np.round(self.loss, 4).tolist(),
            "share": np.round(self.share, 3).tolist(),
            "maps": np.round(100 * self.maps).astype(int).tolist(),
            "relevant": self.relevant.tolist(),
            "plateau": round(self.plateau),
        }


def watch_transformer(tell: Tell, sequences: int = 12, steps: int = 2000) -> Watched:
    """Train one run until it has learned, and half as long again."""
    task = SingleLocation(length=16, dim=8, position="random", indicator=True)
    model = Transformer(layers=1, heads=2, width=32)
    optimizer = Optimizer("adam", learning_rate=5e-4)
    run = Run(Config(task, model, optimizer, steps=steps, overtrain=0.5), seed=0)
    frames: dict[int, np.ndarray] = {}

    def look(trained: Trained) -> None:
        maps = trained.attention_maps(sequences)
        # The attention of the last position in the only layer, as (heads, sequences, length).
        frames[trained.step] = np.asarray(maps)[0, :, :, -1].swapaxes(0, 1)

    def progress(now: Progress) -> None:
        tell(max((step for _, step, _ in now.running), default=steps) / steps)

    [result] = train(
        [run], keep=range(0, steps + 1, task.eval_every), snapshot=look, progress=progress
    )
    assert result.curves is not None, "trained runs have curves"
    relevant = np.asarray(Trained(run, 0, None).batch(sequences).relevant).argmax(-1)
    steps_seen = np.array(sorted(frames))
    loss = result.curves["loss"][np.searchsorted(result.curves["step"], steps_seen)]
    maps = np.stack([frames[step] for step in sorted(frames)])
    return Watched(steps_seen, loss, maps, relevant, result.plateau.time)
