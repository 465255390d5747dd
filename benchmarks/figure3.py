"""How long the runs of zucchet2025's Fig. 3, left and middle, take as one process, and whether they end where the recorded did.

    python benchmarks/figure3.py OUT_FOLDER SECONDS [--preset=paper] [LENGTH ...]

Trains all 180 anew (of the preset `paper`), or those of some lengths, compilation included, as `emergo figure zucchet2025/fig3`
does, and stops when the time is up. Writes `figure3.csv` whenever a run has ended: its plateau here and on record, and when it
ended.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pandas as pd

from emergo.engine import OutOfTime, Result
from emergo.papers import RunSource, find_figure
from emergo.papers._figure import Preset
from emergo.papers._source import distinct
from emergo.studies import Watcher, read_records
from emergo.tasks import SingleLocation

PARTS = ("left", "middle")
RECORDED = ("recorded_state", "recorded", "recorded_steps")


class Table(Watcher):
    """Writes one row per run that has ended."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file, self.rows, self.records, self.begun = file, [], read_records(), time.monotonic()

    def ended(self, result: Result) -> None:
        row = {name: getattr(result.run.config.task, name) for name in ("length", "dim", "burst")}
        row |= {"seed": result.run.seed, "state": result.state, "plateau": result.plateau.time, "steps": result.steps}
        if result.run in self.records:
            before = self.records.read(result.run)
            row |= dict(zip(RECORDED, (before.state, before.plateau.time, before.steps), strict=True))
        self.rows.append(row | {"ended_s": time.monotonic() - self.begun})
        pd.DataFrame(self.rows).to_csv(self.file, index=False)


def main(out: Path, seconds: float, lengths: Sequence[int], preset: Preset = "paper") -> None:
    out.mkdir(parents=True, exist_ok=True)
    studies = {part: study for part, study in find_figure("zucchet2025/fig3").studies(preset).items() if part in PARTS}
    runs, table = distinct(studies), Table(out / "figure3.csv")
    runs = [run for run in runs if not lengths or cast(SingleLocation, run.config.task).length in lengths]
    if not runs:
        sys.exit(f"no run of Fig. 3 has the length {' or '.join(map(str, lengths))}")
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(OutOfTime):
        RunSource("figure3", table, Path(folder), deadline=time.monotonic() + seconds)._train(runs)
    rows = pd.DataFrame(table.rows)
    rows = rows.reindex(columns=list(dict.fromkeys([*rows, *RECORDED])))
    by_length = rows.groupby("length")
    ends = {"first_s": by_length["ended_s"].min(), "last_s": by_length["ended_s"].max()}
    print(by_length[["steps", "recorded_steps"]].sum().assign(**ends))
    print(rows.groupby(["state", "recorded_state"]).size().to_string())
    print(f"{len(rows)} of {len(runs)} runs in {time.monotonic() - table.begun:.1f} s on {jax.devices()[0].device_kind}")
    both = rows[(rows["state"] == "reached") & (rows["recorded_state"] == "reached")]  # a censored run has no plateau
    ratio = np.log(both["plateau"] / both["recorded"])
    words = f"plateau over that on record, {len(both)} runs that reached it in both"
    print(f"{words}: geometric mean {np.exp(ratio.mean()):.4f}, spread {ratio.std():.4f}")


if __name__ == "__main__":
    if len(sys.argv) < 3 or "--help" in sys.argv:
        sys.exit(__doc__)
    options = dict(word.removeprefix("--").split("=") for word in sys.argv[3:] if "=" in word)
    if set(options) - {"preset"}:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), float(sys.argv[2]), [int(word) for word in sys.argv[3:] if "=" not in word], **cast(Any, options))
