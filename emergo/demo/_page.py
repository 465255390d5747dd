"""Self-contained pages: one file with charts by Vega-Lite, and no requests to the network."""

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
# Leading digits of the numbers on a logarithmic axis, from dense to sparse.
DIGITS = ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))


def script_json(value: Any) -> str:
    """Encode data for a script element, such that no text in it can end the element."""
    return json.dumps(to_jsonable(value), allow_nan=False).replace("<", "\\u003c")


@functools.cache  # takes half a second
def _charts() -> str:
    """Return the JavaScript program that draws charts."""
    import vl_convert  # an import that only pages need

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def log_axis(values: Iterable[float], room: float = 0.06) -> dict[str, Any]:
    """Choose the numbers on a logarithmic axis: as many round ones as fit.

    Vega-Lite's own choice is crowded on axes that span about one power of ten.

    **Arguments:**

    - `values`: the plotted values; the axis covers the positive ones.
    - `room`: smallest distance between two numbers, as a share of the axis.
    """
    known = [value for value in values if value > 0 and math.isfinite(value)]
    edge = (max(known) / min(known)) ** 0.04  # the padding of a chart
    low = min(known) / edge
    high = max(known) * edge
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    numbers: list[float] = []
    for digits in DIGITS:
        candidates = [digit * 10.0**power for power in powers for digit in digits]
        numbers = [float(f"{number:.6g}") for number in candidates if low <= number <= high]
        if all(after / before >= (high / low) ** room for before, after in pairwise(numbers)):
            break
    return {"values": numbers, "format": ",.6~r"}


def page(template: str, **words: Any) -> str:
    """Fill in a template: style, program for charts, and these words."""
    shared = {
        "style": (HERE / "page.css").read_text("utf-8"),
        "show_charts": (HERE / "page.js").read_text("utf-8"),
    }
    return Template((HERE / template).read_text("utf-8")).substitute(
        shared | {"bundle": _charts()} | words
    )
