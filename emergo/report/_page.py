"""Pages that need nothing but themselves: one file, charts by Vega-Lite, no request to anywhere."""

import functools
import json
from pathlib import Path
from string import Template
from typing import Any

from .._json import to_jsonable

HERE = Path(__file__).parent


def script_json(value: Any) -> str:
    """Data for a script element: no text in it can end the element."""
    return json.dumps(to_jsonable(value), allow_nan=False).replace("<", "\\u003c")


@functools.cache  # half a second
def _charts() -> str:
    """The program that draws charts."""
    import vl_convert  # needed for pages alone

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def page(template: str, **words: Any) -> str:
    """A template with the look and the charts' program that all pages share, and with these words filled in."""
    shared = {"style": (HERE / "page.css").read_text("utf-8"), "show_charts": (HERE / "page.js").read_text("utf-8")}
    return Template((HERE / template).read_text("utf-8")).substitute(shared | {"bundle": _charts()} | words)
