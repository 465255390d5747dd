"""Format the values of checks and tables with three digits."""

from typing import Any

from emergo.core.terminal import is_interval


def number(value: float) -> str:
    """Return three digits, or a whole number if it is large."""
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.3g}"


def shown(value: Any, between: str = ", ") -> str:
    """Return a value of a check or a cell as text; an inner interval follows its number."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list):
        inner = [with_interval(*v[:3]) if is_interval(v) else shown(v) for v in value]
        return between.join(inner) or "none"
    if isinstance(value, dict):
        return "; ".join(f"{name}: {shown(v)}" for name, v in value.items()) or "none"
    return str(value)


def with_interval(value: float, low: float | None, high: float | None) -> str:
    """Return a number, followed by its interval if both ends are known."""
    if low is None or high is None:
        return number(value)
    return f"{number(value)} [{number(low)}, {number(high)}]"
