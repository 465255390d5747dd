"""What commands print, and how. Needs nothing that is slow to import."""

import json
from typing import Any

from ._json import plain


def console(wide: bool = False):
    """Standard output; `wide` where it is not a terminal, so that lines stay whole."""
    from rich.console import Console

    made = Console()
    return Console(width=160) if wide and not made.is_terminal else made


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    print(json.dumps(plain(value), allow_nan=False))


def short(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(short(v) for v in value)
    return str(value)


def duration(seconds: float) -> str:
    """A time to read: 40 s, 12 min, 9 h, 12 d."""
    for most, unit, size in ((90, "s", 1), (90 * 60, "min", 60), (36 * 3600, "h", 3600)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def verdict(agrees: bool | None) -> str:
    """The words before a law or a check."""
    return {True: "agrees     ", False: "disagrees  ", None: "           "}[agrees]


def print_law(law: dict[str, Any]) -> None:
    """A law with its intervals, and the published one beside it."""
    name = f"{law['name']}: " if "name" in law else ""
    before = verdict(law["agrees"]) if "agrees" in law else ""
    print(f"{before}{name}{law['formula']}, R² {short(law['r2'])}, {law['runs']} runs")
    for column, interval in law["ci95"].items():
        value = law["C"] if column == "C" else law["exponents"][column]
        bounds = "not determined" if interval[0] is None else f"[{interval[0]:.4g}, {interval[1]:.4g}]"
        print(f"    {column:14} {value:.4g}  95% {bounds} ({law['ci_kind']})")
    if law.get("published"):
        print(f"    published: {law['published']['formula']}; level {short(law['level'])}; {law['why']}")
