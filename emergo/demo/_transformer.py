"""A small Transformer whose attention is watched while it becomes sparse."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..models import Transformer
from ..tasks import SingleLocation
from ..training import Config, Optimizer, Progress, Run, Trained, train
from ._threads import Tell


class Watched(NamedTuple):
    """One run: its test loss, and where its last position looks in some test sequences, at every
    evaluation."""

    steps: Int[np.ndarray, " frames"]
    loss: Float[np.ndarray, " frames"]
    maps: Float[np.ndarray, "frames heads sequences length"]
    relevant: Int[np.ndarray, " sequences"]  # the position that matters in each sequence
    plateau: float

    @property
    def share(self) -> Float[np.ndarray, " frames"]:
        """The attention on the relevant token, of the head that looks there most at the end."""
        here = self.maps[:, :, np.arange(len(self.relevant)), self.relevant].mean(-1)
        return here[:, here[-1].argmax()]

    def data(self) -> dict[str, Any]:
        """What the page shows; attention in percent, which is as fine as a shade can be seen."""
        maps = np.round(100 * self.maps).astype(int).tolist()
        numbers = {
            "steps": self.steps.tolist(),
            "loss": np.round(self.loss, 4).tolist(),
            "share": np.round(self.share, 3).tolist(),
        }
        return numbers | {
            "maps": maps,
            "relevant": self.relevant.tolist(),
            "plateau": round(self.plateau),
        }


def watch_transformer(tell: Tell, sequences: int = 12, steps: int = 2000) -> Watched:
    """Trains one run to its emergence and half as long again."""
    task = SingleLocation(length=16, dim=8, position="random", indicator=True)
    model = Transformer(layers=1, heads=2, width=32)
    run = Run(
        Config(task, model, Optimizer("adam", learning_rate=5e-4), steps=steps, overtrain=0.5),
        seed=0,
    )
    frames: dict[int, np.ndarray] = {}

    def look(run: Run, step: int, params: Any) -> None:
        maps = Trained(run, step, params).attention_maps(sequences)
        frames[step] = np.asarray(maps)[0, :, :, -1].swapaxes(
            0, 1
        )  # of the only layer: heads, sequences, length

    def progress(now: Progress) -> None:
        tell(max((step for _, step, _ in now.running), default=steps) / steps)

    [result] = train(
        [run], keep=range(0, steps + 1, task.eval_every), snapshot=look, progress=progress
    )
    if result.curves is None:
        raise ValueError("a run that was trained has curves")
    relevant = np.asarray(Trained(run, 0, None).batch(sequences).relevant).argmax(-1)
    at = [int(np.flatnonzero(result.curves["step"] == step)[0]) for step in sorted(frames)]
    maps = np.stack([frames[step] for step in sorted(frames)])
    return Watched(
        np.array(sorted(frames)), result.curves["loss"][at], maps, relevant, result.plateau.time
    )
