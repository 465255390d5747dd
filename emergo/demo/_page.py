"""Pages that need nothing but themselves: one file, charts by Vega-Lite, no request to anywhere."""

import functools
import json
import math
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any

from ..core.json import to_jsonable

HERE = Path(__file__).parent
DIGITS = (
    (1, 1.5, 2, 3, 5, 7),
    (1, 2, 5),
    (1, 3),
    (1,),
)  # of numbers on a logarithmic axis; more where there is room


def script_json(value: Any) -> str:
    """Data for a script element: no text in it can end the element."""
    return json.dumps(to_jsonable(value), allow_nan=False).replace("<", "\\u003c")


@functools.cache  # half a second
def _charts() -> str:
    """The program that draws charts."""
    import vl_convert  # needed for pages alone

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def log_axis(values: Iterable[float], room: float = 0.06) -> dict[str, Any]:
    """A logarithmic axis over positive values with as many round numbers as there is room for, each
    at least that share of the axis from the next. Without this they crowd where the axis spans
    little more or less than one power of ten."""
    known = [value for value in values if value > 0 and math.isfinite(value)]
    if not known:
        return {}
    edge = (max(known) / min(known)) ** 0.04  # the padding of a chart
    low = min(known) / edge
    high = max(known) * edge
    if high / low < 1.001:
        return {"values": known[:1], "format": ",.6~r"}
    powers = range(math.floor(math.log10(low)) - 4, math.ceil(math.log10(high)) + 1)
    sets = [[digit * 10.0**power for power in powers for digit in digits] for digits in DIGITS]
    sets += [[10.0**power for power in powers if power % 5 == 0]]
    steps = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    sets += [
        [step * i for i in range(int(low / step), int(high / step) + 1)]
        for step in steps
        if (high - low) / step < 100
    ]
    inside = [[float(f"{value:.6g}") for value in each if low <= value <= high] for each in sets]
    apart = [
        each for each in inside if all(b / a >= (high / low) ** room for a, b in pairwise(each))
    ]
    return {"values": max(apart, key=len), "format": ",.6~r"}


def page(template: str, **words: Any) -> str:
    """A template with the look and the charts' program that all pages share, and with these words
    filled in."""
    shared = {
        "style": (HERE / "page.css").read_text("utf-8"),
        "show_charts": (HERE / "page.js").read_text("utf-8"),
    }
    return Template((HERE / template).read_text("utf-8")).substitute(
        shared | {"bundle": _charts()} | words
    )
