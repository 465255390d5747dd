"""What commands print, and how. Needs nothing that is slow to import.

Names, hosts, columns and messages may come from anybody's files: whatever is printed here goes
through `safe`.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from .json import to_jsonable

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def safe(text: str) -> str:
    """Text with what a terminal would act on written out, such as \\x1b for an escape: control
    characters but for new lines and tabs, marks that turn the direction of writing around, and
    halves of characters."""
    return _UNSAFE.sub(
        lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text
    )


def console(wide: bool = False, stderr: bool = False):
    """Standard output or standard error; `wide` where it is not a terminal, so that lines stay
    whole. Brackets are text."""
    from rich.console import Console

    class Safe(Console):
        def render(self, *given: Any, **options: Any) -> Any:
            for segment in super().render(*given, **options):
                yield segment if segment.control else segment._replace(text=safe(segment.text))

    # A notebook keeps what is written to standard error apart.
    how: dict[str, Any] = {
        "stderr": stderr,
        "markup": False,
        "emoji": False,
        "force_jupyter": False if stderr else None,
    }
    made = Safe(**how)
    return Safe(**how, width=160) if wide and not made.is_terminal else made


def show(*lines: str) -> None:
    """Lines on standard output."""
    print(safe("\n".join(lines)), flush=True)


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    print(json.dumps(to_jsonable(value), allow_nan=False))


def say(message: str) -> None:
    """One line on standard error."""
    print(f"emergo: {safe(message)}", file=sys.stderr, flush=True)


def fail(status: int, message: str) -> NoReturn:
    """Ends the process with one line on standard error, and not a long one."""
    line = " ".join(message.split())
    say(line if len(line) <= 1500 else f"{line[:1000]} ... {line[-400:]}")
    sys.exit(status)


def short(value: Any) -> str:
    """A value in a few characters; a list of three within another is a number and its interval."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        inner = [
            f"{short(v[0])} [{short(v[1:])}]" if isinstance(v, list) and len(v) == 3 else short(v)
            for v in value
        ]
        return ", ".join(inner) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {short(v)}" for name, v in value.items()) or "none"
    return str(value)


def duration(seconds: float) -> str:
    """A time to read: 40 s, 12 min, 9 h, 12 d."""
    for most, unit, size in ((90, "s", 1), (90 * 60, "min", 60), (36 * 3600, "h", 3600)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def counted(count: int, what: str) -> str:
    """1 run, 2 runs."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def memory(size: float) -> str:
    """A number of bytes to read: 340 kB, 12 MB, 3.4 GB."""
    if size >= 1e9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def table(*heads: str, left: tuple[str, ...] = (), wrap: tuple[str, ...] = ()):
    """An empty table without lines; columns are to the right and in one line but for those in
    `left` and in `wrap`."""
    from rich.table import Table

    made = Table(box=None, header_style="bold", pad_edge=False)
    for head in heads:
        made.add_column(head, justify="left" if head in left else "right", no_wrap=head not in wrap)
    return made


def cell_table(cells: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> Any:
    """One row per cell of a `cell_summary`: the median plateau (* where `chosen`) and its range; >
    marks a lower bound."""
    shown = table(*axes, "runs", "plateau", "min-max", "censored", "failed")
    for cell in cells:
        values = [
            f"{cell[axis]:g}" if isinstance(cell[axis], float | int) else str(cell[axis])
            for axis in axes
        ]
        middle = spread = "-"
        if cell["plateau"] is not None:
            middle = plateau_text(cell["plateau"], cell["bound"])
            middle += "*" if cell.get("chosen") else ""
            spread = plateau_range(cell)
        runs = f"{cell['runs']} of {cell['planned']}"
        shown.add_row(*values, runs, middle, spread, str(cell["censored"]), str(cell["failed"]))
    return shown


def plateau_text(plateau: float, bound: bool) -> str:
    """Format the median plateau of a cell; `>` marks a lower bound."""
    return f"{'>' if bound else ''}{plateau:.0f}"


def plateau_range(cell: Mapping[str, Any]) -> str:
    """The smallest and the largest plateau of a cell of a `cell_summary`: 43-60, 43 to >3000, or
    >30 where all are bounds."""
    low = f"{cell['plateau_min']:.0f}"
    high = f"{cell['plateau_max']:.0f}"
    if not cell["censored"]:
        return f"{low}-{high}"
    if cell["censored"] < cell["runs"] - cell["failed"]:
        return f"{low} to >{high}"
    return f">{low}" if low == high else f">{low} to >{high}"


def verdict(agrees: bool | None) -> str:
    """The words before a law or a check."""
    return {True: "agrees     ", False: "disagrees  ", None: "           "}[agrees]


def law_lines(law: dict[str, Any]) -> list[str]:
    """A law (as plain data) in words: its formula, its intervals, and the published law beside
    it."""
    name = f"{law['name']}: " if "name" in law else ""
    before = verdict(law["agrees"]) if "agrees" in law else ""
    lines = [f"{before}{name}{law['formula']}, R² {short(law['r2'])}, {law['runs']} runs"]
    for column, interval in law["ci95"].items():
        value = law["C"] if column == "C" else law["exponents"][column]
        bounds = (
            "not determined" if interval[0] is None else f"[{interval[0]:.4g}, {interval[1]:.4g}]"
        )
        lines.append(f"    {column:14} {value:.4g}  95% {bounds} ({law['ci_kind']})")
    spread = law["spread"]
    seeds = law["seed_spread"]
    if law["ci_kind"] == "seeds" and spread and seeds and spread > 1.5 * seeds:
        words = f"{spread:.2g} off the law, {seeds:.2g} off the means of cells"
        lines.append(f"    spread of logs: {words}; the intervals take the law for granted")
    if law.get("published"):
        lines.append(
            f"    published: {law['published']['formula']}; level {short(law['level'])}; "
            f"{law['why']}"
        )
    return lines


def fit_lines(law: dict[str, Any]) -> list[str]:
    """A law that was fitted, and the one that also uses censored runs where there are any."""
    lines = law_lines(law)
    if law.get("with_censored"):
        runs = counted(law["censored"], "censored run")
        lines.append(
            f"note: least squares leave out {runs}, which biases them; this fit uses them:"
        )
        lines += law_lines(law["with_censored"])
    return lines


def print_law(law: dict[str, Any]) -> None:
    show(*law_lines(law))
