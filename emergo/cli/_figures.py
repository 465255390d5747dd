"""`emergo figures` and `emergo figure`."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from .._errors import InputError
from .._terminal import console, duration, fail, print_json, print_law, progress_bar, short, table, verdict


@dataclasses.dataclass(frozen=True)
class Figures:
    """List every figure: id, what it shows, cost, state."""

    out: Path = Path("out")
    """Folder in which to look for figures that are already made."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from ..papers import FIGURES, made_preset, seconds_needed, work_for

        work = work_for(self.out)
        rows = []
        for f in FIGURES.values():
            needed = {preset: seconds_needed(f, preset, work) for preset in f.presets}
            made = made_preset(f, self.out)
            rows.append({"id": f.id, "shows": f.shows, "seconds": dict(f.seconds), "needed": needed, "made": made})
        if self.json:
            return print_json({"figures": rows})
        shown = table("figure", "shows", "laptop", "paper", "state", left=("figure", "shows", "state"), wrap=("shows",))
        for row in rows:
            cost = [duration(row["needed"][p]) if row["needed"][p] else "recorded" for p in ("laptop", "paper")]
            shown.add_row(row["id"], row["shows"], *cost, f"made ({row['made']})" if row["made"] else "not made")
        console().print(shown)


@dataclasses.dataclass(frozen=True)
class Figure:
    """Make figures: plot (SVG, PNG, for some an animation), data (Parquet) and laws and checks (JSON) of each."""

    id: Positional[tuple[str, ...]]
    """As listed by `emergo figures`, e.g. zucchet2025/fig2. Several share what they compile."""
    preset: str = "laptop"
    """paper, laptop or smoke."""
    out: Path = Path("out")
    """Folder to write to; files go to OUT/<id>.*, runs that have to be trained to OUT/runs."""
    fresh: bool = False
    """Train even where results/ has the runs."""
    partial: bool = False
    """Train nothing: show the cells whose runs are all there already."""
    yes: bool = False
    """Do not ask before training that takes over ten minutes on this CPU."""
    json: bool = False
    """Print one JSON object; for several figures it holds them in a list."""

    def run(self) -> None:
        from ..papers import find_figure, run_figure

        if not self.id:
            raise InputError("name at least one figure; emergo figures lists them")
        chosen = [find_figure(id) for id in self.id]
        if not (self.yes or self.partial):
            self._ask(chosen)
        made = []
        for figure in chosen:
            try:
                with progress_bar() as show:
                    made.append(run_figure(figure, self.preset, self.out, show, self.fresh, self.partial))
            except KeyboardInterrupt as stop:
                if figure.runs is not None:
                    stop.add_note(f"runs that ended are in {self.out / 'runs'}; the same command goes on")
                raise
            if not self.json:
                _print_figure(made[-1])
        if self.json:
            print_json(made[0] if len(made) == 1 else {"figures": made})

    def _ask(self, figures: Sequence[Any]) -> None:
        """Before training that takes over ten minutes on a CPU."""
        import jax

        from ..papers import seconds_needed, work_for

        if jax.default_backend() != "cpu":
            return
        work = work_for(self.out, fresh=self.fresh)
        needed = {figure.id: seconds_needed(figure, self.preset, work) for figure in figures}
        long = [f"{id} takes about {duration(seconds)}" for id, seconds in needed.items() if seconds > 600]
        if not long:
            return
        said = f"on a CPU of two cores the {self.preset} preset of {', of '.join(long)}"
        if self.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise InputError(f"{said}; add --yes to start it")
        print(f"{said}. Start? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            fail(1, "nothing was started")


def _print_figure(found: dict[str, Any]) -> None:
    print(found["figure"])
    if found["shrunk"]:
        print(f"{found['preset']} preset, so no verdict: {found['shrunk']}")
    if found["partial"]:
        print(found["partial"])
    for law in found["laws"]:
        print_law(law)
    for check in found["checks"]:
        print(f"{_check_verdict(check)}{check['name']}: {short(check['measured'])}{_beside(check)}")
    print(f"{found['seconds']:.1f} s; wrote {', '.join(found['files'])}")


def _check_verdict(check: dict[str, Any]) -> str:
    """A published value is agreed with or not; an expectation of ours holds or not."""
    if check["published"] is not None:
        return verdict(check["agrees"])
    return {True: "holds      ", False: "fails      ", None: "           "}[check["holds"]]


def _beside(check: dict[str, Any]) -> str:
    if check["published"] is not None:
        return f" (published: {short(check['published'])})"
    return f" (expected: {check['expected']})"
