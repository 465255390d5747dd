"""Printed output: tables, laws, and numbers in a few characters. Imports quickly.

Names, hosts, columns and messages may come from untrusted files. So all output passes through
`safe`.
"""

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from .json import to_jsonable

NARROWEST = 40  # columns of a terminal
WIDEST = 1000
_WRAPPED = 20  # columns of a text that takes several lines
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_STYLE = re.compile("\x1b\\[[0-9;]*m")


def bound_width() -> None:
    """Let libraries see a terminal of a usual width and height.

    tyro never returns with fewer than six columns; rich omits tables with 0 columns and fails with
    digits of other alphabets.
    """
    size = shutil.get_terminal_size()
    if "COLUMNS" in os.environ or size.columns < NARROWEST:
        os.environ["COLUMNS"] = str(min(max(size.columns, NARROWEST), WIDEST))
    if "LINES" in os.environ:
        os.environ["LINES"] = str(min(max(size.lines, 1), WIDEST))


def safe(text: str) -> str:
    """Escape the characters on which a terminal acts, e.g. an escape as \\x1b.

    These are control characters except new lines and tabs, marks that change the direction of
    writing, and unpaired surrogates.
    """
    return _UNSAFE.sub(
        lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text
    )


def console(wide: bool = False, stderr: bool = False):
    """Return a console of rich that escapes unsafe characters. Brackets are text, not markup.

    **Arguments:**

    - `wide`: outside of a terminal, and without the variable COLUMNS, print 160 columns, so that
        lines are not broken.
    - `stderr`: write to standard error.
    """
    from rich.console import Console

    class Safe(Console):
        def render(self, *given: Any, **options: Any) -> Any:
            for segment in super().render(*given, **options):
                yield segment if segment.control else segment._replace(text=safe(segment.text))

    # In a notebook, standard error stays separate from the results.
    how: dict[str, Any] = {
        "stderr": stderr,
        "markup": False,
        "emoji": False,
        "force_jupyter": False if stderr else None,
    }
    made = Safe(**how)
    free = wide and not made.is_terminal and "COLUMNS" not in os.environ
    return Safe(**how, width=160) if free else made


def ask(question: str) -> bool:
    """Ask a question on standard error; return True if the answer on standard input is yes."""
    print(safe(f"{question} [y/N] "), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def show(*lines: str) -> None:
    """Print lines on standard output; in a terminal, those that are too wide on several lines."""
    if not lines:
        return
    text = safe("\n".join(lines))
    print(_wrapped(text) if sys.stdout.isatty() or "COLUMNS" in os.environ else text, flush=True)


def show_help(text: str) -> None:
    """Print a help text, which is our own and may have colours."""
    print(_wrapped(text), end="", flush=True)


def _wrapped(text: str) -> str:
    """Break the lines of a text between words to fit the window. Words are never cut.

    Further lines of an indented text, or of a usage, are indented more than the first one. Escape
    sequences take no room.
    """
    most = shutil.get_terminal_size().columns
    return "\n".join(part for line in text.split("\n") for part in _wrap(line, most))


def _wrap(line: str, most: int) -> list[str]:
    if len(_STYLE.sub("", line)) <= most:
        return [line]
    before = len(line) - len(line.lstrip())
    indent = " " * min(before + 4, most // 4) if before or line.startswith("usage") else ""
    lines = [""]
    words = re.findall(r"\s*\S+", line)
    if max(map(len, words), default=0) > most:  # such as a list of subcommands
        words = re.findall(r"\s*[^\s,]+,*|\s*,+", line)
    for word in words:
        if lines[-1].strip() and len(_STYLE.sub("", lines[-1] + word)) > most:
            lines.append(indent + word.lstrip())
        else:
            lines[-1] += word
    return lines


def print_json(value: Any) -> None:
    """Print one JSON object on standard output."""
    print(json.dumps(to_jsonable(value), allow_nan=False))


def say(message: str) -> None:
    """Print one line on standard error."""
    print(f"emergo: {safe(message)}", file=sys.stderr, flush=True)


def fail(status: int, message: str) -> NoReturn:
    """End the process with one line of limited length on standard error."""
    say(" ".join(message.split())[:1500])
    sys.exit(status)


def short(value: Any) -> str:
    """Format a value in a few characters; an inner interval follows its number."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        inner = [f"{short(v[0])} [{short(v[1:3])}]" if is_interval(v) else short(v) for v in value]
        return ", ".join(inner) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {short(v)}" for name, v in value.items()) or "none"
    return str(value)


def rounded_interval(value: float | None, low: float | None, high: float | None) -> str:
    """Format a number and its interval with two digits of the half-width of the interval."""
    if value is None or low is None or high is None or not low < high:
        return f"{short(value)} [{short([low, high])}]"
    places = max(0, 1 - math.floor(math.log10((high - low) / 2)))
    return f"{value:.{places}f} [{low:.{places}f}, {high:.{places}f}]"


def is_interval(value: Any) -> bool:
    """Return whether a value is a number with both ends of its interval, and possibly the units
    over which the interval was taken ("seeds" or "cells")."""
    if not isinstance(value, list):
        return False
    return len(value) == 3 or (len(value) == 4 and isinstance(value[3], str))


def duration(seconds: float) -> str:
    """Format a time: 40 s, 12 min, 9 h, 12 d."""
    for most, unit, size in ((90, "s", 1), (90 * 60, "min", 60), (36 * 3600, "h", 3600)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def counted(count: int, what: str) -> str:
    """Format a count with its noun: 1 run, 2 runs."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def memory(size: float) -> str:
    """Format a number of bytes: 340 kB, 12 MB, 3.4 GB."""
    if size >= 1e9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


class FittedTable:
    """A table without rules that drops optional columns if the window is too narrow.

    If the other columns still do not fit, every row becomes a list of its names and values. Nothing
    is cut.

    **Arguments:**

    - `heads`: the names of the columns.
    - `left`: the left-aligned columns; the others are right-aligned.
    - `wrap`: the columns whose text may take several lines in any window.
    - `optional`: the columns that may be dropped, the first one first.
    """

    def __init__(
        self,
        *heads: str,
        left: Sequence[str] = (),
        wrap: Sequence[str] = (),
        optional: Sequence[str] = (),
    ) -> None:
        self.heads = heads
        self.left = left
        self.wrap = wrap
        self.optional = optional
        self.rows: list[tuple[tuple[str, ...], str]] = []

    def add_row(self, *words: str, style: str = "") -> None:
        """Add a row; columns without a word at its end stay empty."""
        missing = len(self.heads) - len(words)
        self.rows.append((words + ("",) * missing, style))

    def __rich_console__(self, console: Any, options: Any):
        from rich.cells import cell_len
        from rich.table import Table

        widths = {
            head: max(map(cell_len, (head, *(words[i] for words, _ in self.rows))))
            for i, head in enumerate(self.heads)
        }
        widths |= {head: min(widths[head], _WRAPPED) for head in self.wrap}
        shown = list(self.heads)
        dropped = iter(self.optional)

        def too_wide() -> bool:
            needed = sum(widths[head] for head in shown) + 2 * (len(shown) - 1)
            return needed > options.max_width

        while too_wide() and (head := next(dropped, None)) is not None:
            shown = [name for name in shown if name != head]
        if too_wide():
            yield from self._lists()
            return
        made = Table(box=None, header_style="bold", pad_edge=False)
        for head in shown:
            justify = "left" if head in self.left else "right"
            made.add_column(head, justify=justify, no_wrap=head not in self.wrap, overflow="fold")
        for words, style in self.rows:
            kept = [words[i] for i, head in enumerate(self.heads) if head in shown]
            made.add_row(*kept, style=style)
        yield made

    def _lists(self):
        """Yield each row as a line such as `dim 8, length 32, plateau 412`."""
        from rich.text import Text

        for words, style in self.rows:
            named = (f"{head} {word}" for head, word in zip(self.heads, words, strict=True) if word)
            yield Text(", ".join(named), style)


def cell_table(cells: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> FittedTable:
    """Return a table with one row per cell of a `cell_summary`: counts, median plateau and range.

    `>` marks a lower bound, and `*` a cell that is `chosen`.
    """
    heads = (*axes, "runs", "plateau", "min-max", "censored", "failed")
    shown = FittedTable(*heads, optional=("min-max", "failed", "censored"))
    for cell in cells:
        middle = spread = "-"
        if cell["plateau"] is not None:
            chosen = "*" if cell.get("chosen") else ""
            middle = plateau_text(cell["plateau"], cell["bound"]) + chosen
            spread = plateau_range(cell)
        runs = f"{cell['runs']} of {cell['planned']}"
        values = [short(cell[axis]) for axis in axes]
        shown.add_row(*values, runs, middle, spread, str(cell["censored"]), str(cell["failed"]))
    return shown


def plateau_text(plateau: float, bound: bool) -> str:
    """Format the median plateau of a cell; `>` marks a lower bound."""
    return f"{'>' if bound else ''}{plateau:.0f}"


def plateau_range(cell: Mapping[str, Any]) -> str:
    """Format the range of plateaus in a cell: 43-60, 43 to >3000, or >30 if all are bounds."""
    low = f"{cell['plateau_min']:.0f}"
    high = f"{cell['plateau_max']:.0f}"
    if not cell["censored"]:
        return f"{low}-{high}"
    if cell["censored"] < cell["runs"] - cell["failed"]:
        return f"{low} to >{high}"
    return f">{low}" if low == high else f">{low} to >{high}"


def fit_lines(law: Mapping[str, Any]) -> list[str]:
    """Format a law, given as plain data: formula, intervals, and the published law.

    If runs are censored, the fit that uses them comes first.
    """
    lines = [_law_heading(law)]
    if law.get("with_censored"):
        runs = counted(law["censored"], "censored run")
        best = law["with_censored"]
        lines = [_law_heading({**law, **best}), *_interval_lines(best)]
        lines.append(f"note: least squares leave out {runs}, which biases them towards fast runs:")
        lines.append(_law_heading(law, named=False))
    lines += _interval_lines(law)
    if law.get("published"):
        lines.append(
            f"    published: {law['published']['formula']}; level {short(law['level'])}; "
            f"{law['why']}"
        )
    return lines


def _law_heading(law: Mapping[str, Any], named: bool = True) -> str:
    name = f"{law['name']}: " if named and "name" in law else ""
    before = f"{law['verdict'] or '':11}" if named and "verdict" in law else ""
    return f"{before}{name}{law['formula']}, R² {short(law['r2'])}, {law['runs']} runs"


def _interval_lines(law: Mapping[str, Any]) -> list[str]:
    """Format the constant and the exponents of a law with their intervals."""
    lines = []
    for column, interval in law["ci95"].items():
        value = law["C"] if column == "C" else law["exponents"][column]
        bounds = "not determined"
        if interval[0] is not None:
            bounds = f"[{interval[0]:.4g}, {interval[1]:.4g}]"
        lines.append(f"    {column:14} {value:.4g}  95% {bounds} ({law['ci_kind']})")
    return lines


def print_law(law: Mapping[str, Any]) -> None:
    """Print a law, given as plain data."""
    show(*fit_lines(law))
