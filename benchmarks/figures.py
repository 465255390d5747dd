"""How long the runs of figures take when they are trained anew, and whether they end where the
recorded ones did.

    python benchmarks/figures.py OUT_FOLDER SECONDS [--preset=paper] [--workers=N] [--runs=FOLDER]
    FIGURE[:PART,PART] ...

Trains them, compilation included, as `emergo figure FIGURE ... --preset paper --fresh` does, by one
process or with `--workers N`, and stops when the time is up; with `--runs`, the same call goes on.
Draws nothing. Writes `figures.csv` whenever a run has ended, of those that end in this call or are
in training when it does: plateau and last loss, here and on record, and the second of this call at
which it ended.
"""

import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from emergo.papers import Figure, RunSource, find_figure
from emergo.papers._figure import find_preset
from emergo.papers._source import distinct
from emergo.papers._together import train_figures
from emergo.store import Store, StudyFolder, read_records
from emergo.study import Watcher
from emergo.study.results import read_result
from emergo.training import OutOfTime, Progress, Result, Run

COMPARED = ("state", "steps", "plateau", "loss")
TASK = ("length", "dim", "burst", "pairs", "vocabulary")


def chosen(word: str, preset: Any) -> Figure:
    """A figure, or some parts of it."""
    id, _, parts = word.partition(":")
    figure = find_figure(id)
    if not parts:
        return figure
    studies = figure.studies(preset)
    if unknown := [part for part in parts.split(",") if part not in studies]:
        sys.exit(f"{id} has no part {unknown[0]}; it has {', '.join(studies)}")
    some = {part: studies[part] for part in parts.split(",")}
    return dataclasses.replace(figure, presets={"paper": some, preset: some}, followup=None)


class Table(Watcher):
    """Writes one row per run that has ended."""

    def __init__(self, file: Path, folder: Path, figures: Sequence[Figure], preset: Any) -> None:
        super().__init__()
        self.file, self.records, self.begun = file, read_records(), time.monotonic()
        self.store = Store(StudyFolder(folder).runs)
        self.rows: dict[str, dict[str, Any]] = {}
        self.figure_of = {
            run.identity: figure.id for figure in reversed(figures) for run in figure.runs(preset)
        }
        self.following = " ".join(figure.id for figure in figures if figure.followup is not None)

    def ended(self, result: Result) -> None:
        before = (
            read_result(self.records, result.run) if result.run.identity in self.records else None
        )
        recorded = (
            {f"recorded_{name}": value for name, value in outcome(before).items()} if before else {}
        )
        self._write(
            result.run,
            outcome(result if result.curves else read_result(self.store, result.run)) | recorded,
        )

    def training(self, now: Progress) -> None:
        for run, step, loss in now.running:
            if (
                self.rows.get(run.identity, {}).get("state", "in training") == "in training"
            ):  # workers tell it a little late
                self._write(
                    run, {"state": "in training", "steps": step, "loss": loss}, to_disk=False
                )

    def _write(self, run: Run, more: dict[str, Any], to_disk: bool = True) -> None:
        row: dict[str, Any] = {
            "figure": self.figure_of.get(run.identity, self.following),
            "run": run.identity,
        }
        row |= {
            name: getattr(run.config.task, name) for name in TASK if hasattr(run.config.task, name)
        }
        self.rows[run.identity] = (
            row | {"seed": run.seed} | more | {"at_s": time.monotonic() - self.begun}
        )
        if to_disk:
            self.write()

    def write(self) -> pd.DataFrame:
        table = pd.DataFrame(self.rows.values())
        names = [*COMPARED, *(f"recorded_{name}" for name in COMPARED), "at_s"]
        table = table.reindex(columns=[*(name for name in table if name not in names), *names])
        table.to_csv(self.file, index=False)
        return table


def outcome(result: Result) -> dict[str, Any]:
    loss = result.curves["loss"][-1] if result.curves else np.nan
    return {
        "state": result.state,
        "steps": result.steps,
        "plateau": result.plateau.time,
        "loss": loss,
    }


def train_alone(
    figures: Sequence[Figure], preset: Any, folder: Path, seconds: float, table: Table
) -> None:
    """As one process does, figure by figure."""
    deadline = time.monotonic() + seconds
    for figure in figures:
        source = RunSource(figure.id, table, folder, deadline=deadline)
        if figure.followup is not None:
            figure.make(figure.presets[preset], source)
        elif source.missing(runs := distinct(figure.studies(preset))):
            source._train(runs)


def summary(rows: pd.DataFrame) -> None:
    ended = rows[rows["state"] != "in training"]
    times = {
        "ended": ended.groupby("figure").size(),
        "first_s": ended.groupby("figure")["at_s"].min(),
    }
    times |= {"last_s": ended.groupby("figure")["at_s"].max()}
    print(rows.groupby("figure")[["steps", "recorded_steps"]].sum().assign(**times).to_string())
    print(rows.groupby(["state", "recorded_state"], dropna=False).size().to_string())
    both = rows[
        (rows["state"] == "reached") & (rows["recorded_state"] == "reached")
    ]  # a censored run has no plateau
    for name, part in (("plateau", both), ("loss", ended[~ended["run"].isin(both["run"])])):
        ratio = np.log((part[name] / part[f"recorded_{name}"]).dropna())
        if len(ratio):
            words = (
                f"geometric mean {np.exp(ratio.mean()):.4f}, spread {ratio.std():.4f}, at "
                f"most {np.abs(ratio).max():.4f}"
            )
            print(f"{name} over that on record, {len(ratio)} runs: {words}")


def main(
    out: Path,
    seconds: float,
    words: Sequence[str],
    preset: str = "paper",
    workers: int = 1,
    runs: str = "",
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    known: Any = find_preset(preset)
    figures = [chosen(word, known) for word in words]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(runs or temporary)
        table = Table(out / "figures.csv", folder, figures, known)
        if workers == 1:
            with contextlib.suppress(OutOfTime):
                train_alone(figures, known, folder, seconds, table)
        else:
            train_figures(
                figures, known, folder, workers, seconds=seconds, show=table, say=print, fresh=True
            )
    taken = time.monotonic() - table.begun
    if not table.rows:
        sys.exit(
            f"no run was in training in {taken:.1f} s: all are there, or the time was too short"
        )
    summary(table.write())
    states = [row["state"] for row in table.rows.values()]
    left = states.count("in training")
    print(
        f"{len(states) - left} runs ended, {left} are in training, after {taken:.1f} s on "
        f"{jax.devices()[0].device_kind}"
    )


if __name__ == "__main__":
    named = [
        word.removeprefix("--").split("=", 1) for word in sys.argv[1:] if word.startswith("--")
    ]
    given = [word for word in sys.argv[1:] if not word.startswith("--")]
    options = {word[0]: word[-1] for word in named}
    whole = options.get("workers", "1").isdecimal()
    if len(given) < 3 or set(options) - {"preset", "workers", "runs"} or not whole:
        sys.exit(__doc__)
    more: dict[str, Any] = options | {"workers": int(options.get("workers", "1"))}
    main(Path(given[0]), float(given[1]), given[2:], **more)
