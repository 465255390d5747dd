"""Pages that need nothing but themselves: one file, charts by Vega-Lite, no request to anywhere."""

import json
from pathlib import Path
from string import Template
from typing import Any

from .._json import to_jsonable

HERE = Path(__file__).parent


def script_json(value: Any) -> str:
    """Data for a script element: no text in it can end the element."""
    return json.dumps(to_jsonable(value), allow_nan=False).replace("<", "\\u003c")


def page(template: str, **words: Any) -> str:
    """A template with the look and the charts' program that all pages share, and with these words filled in."""
    import vl_convert  # needed for pages alone

    shared = {"style": (HERE / "page.css").read_text("utf-8"), "show_charts": (HERE / "page.js").read_text("utf-8")}
    shared["bundle"] = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return Template((HERE / template).read_text("utf-8")).substitute(shared | words)
