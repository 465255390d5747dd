"""The page of `emergo demo`: demo.html, which needs nothing but itself, with numbers and data filled in."""

import json
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import vl_convert

from .. import theory
from .._json import to_jsonable
from ..measure import Law

if TYPE_CHECKING:
    from ._demo import Demo


def demo_page(demo: "Demo", footer: str) -> str:
    """The page as HTML."""
    (length, dim), runs, middle = demo.settings.middle, demo.runs, demo.at_middle(demo.runs)
    plateaus = middle.groupby("burst")[["plateau", "reduced", "exact"]].mean()
    gains = plateaus.iloc[0] / plateaus.iloc[-1]
    seeds, repeats = middle[middle["burst"] == 1], demo.repetition["plateau"]
    tables = {name: table.to_dict("records") for name, table in _chart_tables(demo).items()}
    return Template(Path(__file__).with_name("demo.html").read_text("utf-8")).substitute(
        bundle=vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"),
        tables=json.dumps(to_jsonable(tables), allow_nan=False),
        level=theory.THRESHOLD * 0.5,
        dims=list(demo.settings.dims),
        bursts=list(plateaus.index),
        runs=len(runs),
        censored=runs["censored"].sum(),
        steps=f"{seeds['plateau'].mean():.0f}",
        seeds=len(seeds),
        length=length,
        dim=dim,
        burst=plateaus.index[-1],
        speedup=f"{gains['plateau']:.1f}",
        reduced_gain=f"{gains['reduced']:.1f}",
        exact_gain=f"{gains['exact']:.1f}",
        repeat=f"{demo.repetition['repeat'][repeats.argmin()]:.2f}",
        repeat_gain=f"{repeats[0] / repeats.min():.1f}",
        footer=footer,
        **_law_words(demo.law, "law"),
        **_law_words(demo.flow_law, "flow"),
    )


def _law_words(law: Law, prefix: str) -> dict[str, Any]:
    words: dict[str, Any] = {"r2": f"{law.r2:.3f}", "runs": law.runs, "censored": law.censored}
    for name, value in {"C": law.C, **law.exponents}.items():
        words |= {name: f"{value:.2f}", f"{name}_interval": "[{:.2f}, {:.2f}]".format(*law.ci95[name])}
    return {f"{prefix}_{name}": word for name, word in words.items()}


def _chart_tables(demo: "Demo") -> dict[str, pd.DataFrame]:
    """The data of the charts, under the names that the page has for them."""
    curves, runs = demo.at_middle(demo.curves[demo.curves["burst"] == 1]), demo.runs[demo.runs["state"] != "failed"]
    shares = {"weights: what to do": curves["alignment"] / np.sqrt(demo.settings.middle[1])}
    shares |= {"attention: where to look": curves["attention"]}
    dims = np.geomspace(min(demo.settings.dims), max(demo.settings.dims), 20)
    law = pd.DataFrame([{"length": length, "dim": dim} for length in demo.settings.lengths for dim in dims])
    flows = demo.at_middle(runs).groupby("burst", as_index=False)[["reduced", "exact"]].first()
    flows = flows.rename(columns={"reduced": "the paper's reduced flow", "exact": "the exact flow"})
    return {
        "curves": curves[["step", "loss", "seed"]].assign(**shares),
        "flow": demo.flow.rename(columns={"time": "step"}),
        "law": law.assign(plateau=demo.law.predict(law)),
        "runs": runs[runs["burst"] == 1],
        "middle": demo.at_middle(runs),
        "flows": flows.melt("burst", var_name="what", value_name="plateau"),
    }
