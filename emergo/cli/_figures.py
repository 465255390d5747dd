"""`emergo demo`, `emergo report`, `emergo figures`, `emergo figure` and `emergo records`."""

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from .._errors import InputError
from .._terminal import console, duration, fail, print_json, print_law, show, table
from ._run import check_positive, parse_pairs


@dataclasses.dataclass(frozen=True)
class Demo:
    """The whole idea at laptop scale; writes report.html."""

    out: Path = Path(".")  # Folder for report.html.
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        if self.out.suffix == ".html":
            raise InputError(f"--out {self.out}: the demo writes report.html into a folder; name the folder")
        from ..report import run_demo
        from ..studies import live_progress

        with live_progress() as show:
            report = run_demo(self.out, show)
        if self.json:
            return print_json(report)
        print_law(report["law"])
        print(f"{report['runs']} runs, {report['seconds']:.0f} s; open {report['files'][0]}")


@dataclasses.dataclass(frozen=True)
class Report:
    """Make one page of the studies of a folder, which opens anywhere: curves, plateaus, laws, cells, failures."""

    folder: Positional[Path]  # Folder of studies, also while they are trained.
    out: Path | None = None  # File to write; by default report.html in the folder.
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        from ..report import report_studies

        report = report_studies(self.folder, self.out)
        if self.json:
            return print_json(report)
        for study in report["studies"]:
            print(f"{study['study']}: {study['finished']} of {study['runs']} runs are finished")
        print(f"open {report['files'][0]}")


@dataclasses.dataclass(frozen=True)
class Figures:
    """List every figure: id, what it shows, cost, state."""

    out: Path = Path("out")  # Folder in which to look for figures that are already made.
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        from ..papers import FIGURES, made_preset, seconds_needed, source_for

        rows = []
        for figure in FIGURES.values():
            source = source_for(figure, self.out)
            needed = {preset: seconds_needed(figure, preset, source) for preset in figure.presets}
            row = {"id": figure.id, "title": figure.title, "seconds": dict(figure.seconds), "needed": needed}
            rows.append(row | {"made": made_preset(figure, self.out)})
        if self.json:
            return print_json({"figures": rows})
        shown = table("figure", "shows", "laptop", "paper", "state", left=("figure", "shows", "state"), wrap=("shows",))
        for row in rows:
            cost = [duration(row["needed"][preset]) if row["needed"][preset] else "recorded" for preset in ("laptop", "paper")]
            shown.add_row(row["id"], row["title"], *cost, f"made ({row['made']})" if row["made"] else "not made")
        console().print(shown)


@dataclasses.dataclass(frozen=True)
class Figure:
    """Make figures: plot (SVG, PNG, for some an animation), data (Parquet) and laws and checks (JSON) of each."""

    id: Positional[tuple[str, ...]]  # As listed by `emergo figures`, e.g. zucchet2025/fig2. Several share what they compile.
    preset: str = "laptop"  # paper, laptop or smoke.
    out: Path = Path("out")  # Folder to write to; files go to OUT/<id>.*, runs that have to be trained to OUT/runs.
    on: Literal["local", "slurm"] = "local"
    """Train here, or send what has to be trained to Slurm; the same command without it draws the figure afterwards."""
    slurm: tuple[str, ...] = ()  # What to ask Slurm for, e.g. minutes=60 gpus=1 partition=gpu.
    seconds: float | None = None
    """Stop training after so many seconds, the most valuable cells first; the same command goes on."""
    workers: int = 1
    """How many processes train what all these figures want, on one GPU at the same time; then the figures are drawn. On a CPU
    one process uses all cores already."""
    fresh: bool = False  # Train even where the package's records have the runs.
    partial: bool = False  # Show the cells whose runs are all there already. Trains nothing, or only for --seconds.
    yes: bool = False  # Do not ask before training that takes over ten minutes on this CPU.
    json: bool = False  # Print one JSON object; for several figures it holds them in a list.

    def run(self) -> None:
        from ..papers import find_figure
        from ..papers._make import make_figures, print_figure

        if not self.id:
            raise InputError("name at least one figure; emergo figures lists them")
        check_positive(seconds=self.seconds, workers=self.workers)
        if self.workers > 1 and self.on == "slurm":
            raise InputError("--workers are processes of this machine; of Slurm ask for --slurm tasks=4")
        if self.slurm and self.on == "local":
            raise InputError(f"--slurm {self.slurm[0]} asks Slurm for something, but this trains here; add --on slurm")
        chosen = [find_figure(id) for id in self.id]
        if self.on == "slurm":
            return self._submit()
        if not (self.yes or self.partial or self.seconds):
            self._ask(chosen)
        options: dict[str, Any] = {} if self.json else {"on_made": print_figure}
        options |= {"fresh": self.fresh, "partial": self.partial, "seconds": self.seconds, "workers": self.workers}
        reports = make_figures(self.id, self.preset, self.out, **options)
        if self.json:
            print_json(reports[0] if len(reports) == 1 else {"figures": reports})

    def _submit(self) -> None:
        from ..papers._make import submit_figures
        from ..studies._slurm import build_slurm

        asked = build_slurm(dict(parse_pairs("--slurm", self.slurm)))
        lines = submit_figures(self.id, self.preset, self.out, asked, self.fresh)
        if self.json:
            return print_json({"submitted": lines, "out": str(self.out)})
        print("\n".join([*lines, f"emergo study status {self.out} --watch   shows how far it is"]))

    def _ask(self, figures: Sequence[Any]) -> None:
        """Before training that takes over ten minutes on a CPU."""
        import jax

        from ..papers import seconds_needed, source_for
        from ..studies._processes import has_nvidia

        if (self.workers > 1 and has_nvidia()) or jax.default_backend() != "cpu":  # the second takes memory of a GPU
            return
        needed = {f.id: seconds_needed(f, self.preset, source_for(f, self.out, fresh=self.fresh)) for f in figures}
        long = [f"{id} takes about {duration(seconds)}" for id, seconds in needed.items() if seconds > 600]
        if not long:
            return
        cost = f"on a CPU of two cores the {self.preset} preset of {', of '.join(long)}"
        if self.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise InputError(f"{cost}; add --yes to start it, or --seconds N to train for a while")
        print(f"{cost}. Start? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            fail(1, "nothing was started")


@dataclasses.dataclass(frozen=True)
class Records:
    """Add the finished runs of a folder that belong to figures to the records that come with the package."""

    what: Positional[Literal["add"]]  # What to do.
    folder: Positional[Path]  # Folder of studies, e.g. the OUT of `emergo figure`.
    name: str | None = None  # Name of the records to add to; by default that of the paper.
    every: Annotated[bool, arg(name="all")] = False  # Add all runs of the folder, also those of no figure; needs a name.
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        from ..papers._make import add_figure_records
        from ..studies._records import SHIPPED

        self._check_folder()
        added = add_figure_records(self.folder, self.name, self.every)
        if self.json:
            return print_json({"added": added, "records": str(SHIPPED)})
        words = ", ".join(f"{count} runs to {name}" for name, count in added.items())
        nothing = "nothing to add: what is finished here is recorded already, or of no figure"
        show(f"{f'added {words}' if words else nothing}; the records are in {SHIPPED}")

    def _check_folder(self) -> None:
        """An `InputError` for what is no folder of studies, runs or records."""
        from ..studies import StudyFolder

        folder = StudyFolder(self.folder)
        if not os.path.lexists(self.folder):
            raise InputError(f"{self.folder}: no such folder")
        if not (os.path.isdir(folder.runs) or any(self.folder.glob("*.runs.parquet"))):
            folder.read()
