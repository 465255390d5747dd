"""`emergo demo`, `emergo figures` and `emergo figure`."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from ..core.errors import InputError
from ..core.terminal import (
    FittedTable,
    ask,
    console,
    duration,
    fail,
    print_json,
    print_law,
    show,
)
from ._run import check_positive, parse_pairs


@dataclasses.dataclass(frozen=True)
class Demo:
    """Show the idea at laptop scale; writes report.html."""

    out: Path = Path(".")  # Folder for report.html.
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        if self.out.suffix == ".html":
            raise InputError(
                f"--out {self.out}: the demo writes report.html into a folder; name the folder"
            )
        from ..demo import run_demo
        from ..study import live_progress

        with live_progress() as progress:
            report = run_demo(self.out, progress)
        if self.json:
            return print_json(report)
        print_law(report["law"])
        show(f"{report['runs']} runs, {report['seconds']:.0f} s; open {report['files'][0]}")


@dataclasses.dataclass(frozen=True)
class Figures:
    """List all figures with their cost and state."""

    out: Path = Path("out")  # Folder with figures that are already made.
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        # The index is a small file, so this command imports neither JAX nor pandas.
        from ..papers import made_preset, read_index

        rows = []
        for entry in read_index().values():
            needed = {preset: entry.seconds_needed(preset, self.out) for preset in entry.seconds}
            rows.append(
                {
                    "id": entry.id,
                    "title": entry.title,
                    "seconds": entry.seconds,
                    "needed": needed,
                    "made": made_preset(entry.id, self.out),
                }
            )
        if self.json:
            return print_json({"figures": rows})
        names = ("figure", "shows", "laptop", "paper", "state")
        left = ("figure", "shows", "state")
        shown = FittedTable(
            *names, left=left, wrap=("shows",), optional=("paper", "laptop", "state")
        )
        for row in rows:
            needed = [row["needed"][preset] for preset in ("laptop", "paper")]
            cost = [duration(seconds) if seconds else "recorded" for seconds in needed]
            state = f"made ({row['made']})" if row["made"] else "not made"
            shown.add_row(row["id"], row["title"], *cost, state)
        console().print(shown)


@dataclasses.dataclass(frozen=True)
class Figure:
    """Make figures: plots (SVG, PNG, sometimes GIF), data (Parquet), laws and checks (JSON)."""

    # Ids as listed by `emergo figures`, e.g. zucchet2025/fig2.
    id: Positional[tuple[str, ...]] = ()
    preset: str = "laptop"  # paper, laptop or smoke.
    out: Path = Path("out")  # Output folder: figures in OUT/<id>.*, trained runs in OUT/runs.
    # Train here, or submit the missing runs to Slurm. Once they are finished, the same command
    # without this option draws the figure.
    on: Literal["local", "slurm"] = "local"
    slurm: tuple[str, ...] = ()  # Resources of the Slurm job, e.g. minutes=60 gpus=1.
    # Stop training after this time. The same command continues later.
    seconds: float | None = None
    # Number of processes that train together on one GPU. On a CPU one process uses all cores.
    workers: int = 1
    fresh: bool = False  # Train runs even if the package's records have them.
    # Draw the cells whose runs are all finished. Trains nothing unless --seconds is set.
    partial: bool = False
    # Parts whose runs are trained again if they are recorded without curves; none: all parts.
    curves: tuple[str, ...] | None = None
    probes: tuple[str, ...] = ()  # Further probes for the trained runs, as MODULE:NAME.
    # Folder of records to which the finished runs in OUT are added. Needs no id.
    add_records: Path | None = None
    name: str | None = None  # Name of the records to add to; by default that of the paper.
    yes: bool = False  # Do not ask before training that takes over ten minutes on this CPU.
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        from ..papers import add_figure_records, find_figure

        self._check()
        chosen = [find_figure(id) for id in self.id]
        if self.on == "slurm":
            return self._submit()
        if not (self.yes or self.partial or self.seconds):
            self._ask(chosen)
        reports = self._make() if self.id else []
        added = None
        if self.add_records is not None:
            added = add_figure_records(self.out, self.add_records, self.name)
        if not self.json:
            return self._show_added(added)
        if added is not None:
            return print_json({"figures": reports, "added": added})
        print_json(reports[0] if len(reports) == 1 else {"figures": reports})

    def _check(self) -> None:
        if not self.id and self.add_records is None:
            raise InputError("name at least one figure; emergo figures lists them")
        check_positive(seconds=self.seconds, workers=self.workers)
        if self.workers > 1 and self.on == "slurm":
            raise InputError(
                "--workers are processes of this machine; of Slurm ask for --slurm tasks=4"
            )
        if self.slurm and self.on == "local":
            raise InputError(
                f"--slurm {self.slurm[0]} asks Slurm for something, but this trains here; add "
                f"--on slurm"
            )

    def _make(self) -> list[dict[str, Any]]:
        from ..forecasting import RunForecasts
        from ..papers import find_probe, make_figures, print_figure

        options: dict[str, Any] = {} if self.json else {"on_made": print_figure}
        return make_figures(
            self.id,
            self.preset,
            self.out,
            fresh=self.fresh,
            partial=self.partial,
            seconds=self.seconds,
            curves=self.curves,
            probes=[find_probe(name) for name in self.probes],
            workers=self.workers,
            forecaster=RunForecasts(),
            **options,
        )

    def _submit(self) -> None:
        from ..papers import submit_figures
        from ..study.slurm import build_slurm

        asked = build_slurm(dict(parse_pairs("--slurm", self.slurm)))
        lines = submit_figures(self.id, self.preset, self.out, asked, self.fresh)
        if self.json:
            return print_json({"submitted": lines, "out": str(self.out)})
        show(*lines, f"emergo study status {self.out} --watch   shows how far it is")

    def _show_added(self, added: dict[str, int] | None) -> None:
        if added is None:
            return
        words = ", ".join(f"{count} runs to {name}" for name, count in added.items())
        if words:
            show(f"added {words}; the records are in {self.add_records}")
        else:
            show("nothing to add: no finished run of a figure is missing in the records")

    def _ask(self, figures: Sequence[Any]) -> None:
        """Ask before training that takes over ten minutes on a CPU."""
        from ..study.processes import has_nvidia

        if has_nvidia():
            return
        import jax  # not earlier: asking JAX for its backend reserves memory of a GPU

        from ..papers import seconds_needed, source_for

        if jax.default_backend() != "cpu":
            return
        long = []
        for figure in figures:
            source = source_for(figure, self.out, fresh=self.fresh)
            seconds = seconds_needed(figure, self.preset, source)
            if seconds > 600:
                long.append(f"{figure.id} takes about {duration(seconds)}")
        if not long:
            return
        cost = f"on a CPU of two cores the {self.preset} preset of {', of '.join(long)}"
        if self.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise InputError(f"{cost}; add --yes to start it, or --seconds N to train for a while")
        if not ask(f"{cost}. Start?"):
            fail(1, "nothing was started")
