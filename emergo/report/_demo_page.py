"""The page of `emergo demo`: charts and the words around them."""

from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
import pandas as pd

from .. import theory
from .._style import BLACK, BLUE, ORANGE, RED
from ..measure import Law
from ._page import Page

if TYPE_CHECKING:
    from ._demo import Demo

_HEIGHT = 300


def _chart(data: pd.DataFrame) -> alt.Chart:
    return alt.Chart(data)


def _finish(*layers: alt.Chart) -> Any:
    """Layers as one chart that can be moved and zoomed."""
    return (
        alt.layer(*layers)
        .properties(width="container", height=_HEIGHT)
        .configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal", gridColor="#ececec")
        .configure_legend(labelFontSize=12, titleFontSize=12, titleFontWeight="normal")
        .configure_view(stroke=None)
        .interactive()
    )


def _loss_chart(demo: "Demo") -> Any:
    length, dim = demo.middle
    c = demo.curves
    rows = c[(c["length"] == length) & (c["dim"] == dim) & (c["burst"] == 1)]
    runs = rows[["step", "loss", "seed"]].assign(what="training run (one line per seed)")
    flow = demo.flow[["time", "loss"]].rename(columns={"time": "step"}).assign(what="theory (gradient flow)")
    names, colours = ["training run (one line per seed)", "theory (gradient flow)"], [ORANGE, BLACK]
    colour = alt.Color("what:N", title=None, scale=alt.Scale(domain=names, range=colours), legend=alt.Legend(orient="top"))
    x, y = alt.X("step:Q", title="training step"), alt.Y("loss:Q", title="test loss")
    lines = (
        _chart(runs)
        .mark_line(strokeWidth=1.2, opacity=0.8)
        .encode(x, y, colour, detail="seed:N", tooltip=["seed", "step", "loss"])
    )
    theory_line = _chart(flow).mark_line(strokeWidth=2.5, strokeDash=[6, 4]).encode(x, y, colour)
    level = theory.THRESHOLD * 0.5
    rule = _chart(pd.DataFrame({"loss": [level]})).mark_rule(color="#999", strokeDash=[2, 3]).encode(y="loss:Q")
    return _finish(lines, theory_line, rule)


def _order_chart(demo: "Demo") -> Any:
    length, dim = demo.middle
    c = demo.curves
    rows = c[(c["length"] == length) & (c["dim"] == dim) & (c["burst"] == 1)]
    shares = pd.concat(
        [
            rows[["step", "seed"]].assign(what="weights: what to do", share=rows["alignment"] / np.sqrt(dim)),
            rows[["step", "seed"]].assign(what="attention: where to look", share=rows["attention"]),
        ]
    )
    names, colours = ["weights: what to do", "attention: where to look"], [BLUE, RED]
    colour = alt.Color("what:N", title=None, scale=alt.Scale(domain=names, range=colours), legend=alt.Legend(orient="top"))
    x, y = alt.X("step:Q", title="training step"), alt.Y("share:Q", title="share of the ideal value")
    lines = (
        _chart(shares)
        .mark_line(strokeWidth=1.2, opacity=0.75)
        .encode(x, y, colour, detail="seed:N", tooltip=["what", "seed", "step", "share"])
    )
    rule = _chart(pd.DataFrame({"share": [1.0]})).mark_rule(color="#999", strokeDash=[2, 3]).encode(y="share:Q")
    return _finish(lines, rule)


def _law_chart(demo: "Demo") -> Any:
    rows = demo.runs[(demo.runs["burst"] == 1) & (demo.runs["state"] != "failed")]
    s = demo.settings
    grid = pd.DataFrame([{"length": T, "dim": d} for T in s.lengths for d in np.geomspace(min(s.dims), max(s.dims), 20)])
    grid["plateau"] = demo.law.predict(grid)
    colour = alt.Color("length:O", title="sequence length", scale=alt.Scale(scheme="viridis"), legend=alt.Legend(orient="top"))
    log = alt.Scale(type="log", nice=False, padding=12)
    x = alt.X("dim:Q", title="dimension d (log scale)", scale=log, axis=alt.Axis(values=list(s.dims), format="d"))
    y = alt.Y("plateau:Q", title="steps until emergence (log scale)", scale=log)
    dots = (
        _chart(rows)
        .mark_point(filled=True, size=45, opacity=0.75)
        .encode(
            x,
            y,
            colour,
            alt.Shape("censored:N", legend=None),
            tooltip=["length", "dim", "seed", "plateau", "low", "high", "censored"],
        )
    )
    lines = _chart(grid).mark_line(strokeWidth=1.5).encode(x, y, colour, detail="length:O")
    return _finish(lines, dots)


def _burst_chart(demo: "Demo") -> Any:
    length, dim = demo.middle
    r = demo.runs
    rows = r[(r["length"] == length) & (r["dim"] == dim) & (r["state"] != "failed")].assign(what="training runs")
    flows = (
        rows.groupby("burst", as_index=False)[["reduced", "exact"]].first().melt("burst", var_name="what", value_name="plateau")
    )
    flows["what"] = flows["what"].map({"reduced": "the paper's reduced flow", "exact": "the exact flow"})
    names = ["training runs", "the paper's reduced flow", "the exact flow"]
    colour = alt.Color(
        "what:N",
        title=None,
        scale=alt.Scale(domain=names, range=[BLACK, ORANGE, BLUE]),
        legend=alt.Legend(orient="top", labelLimit=300),
    )
    log = alt.Scale(type="log", nice=False, padding=12)
    x = alt.X(
        "burst:Q",
        title="times the relevant token appears, B (log scale)",
        scale=log,
        axis=alt.Axis(values=sorted(rows["burst"].unique().tolist()), format="d"),
    )
    y = alt.Y("plateau:Q", title="steps until emergence (log scale)", scale=log)
    dots = _chart(rows).mark_point(filled=True, size=40, opacity=0.7).encode(x, y, colour, tooltip=["burst", "seed", "plateau"])
    lines = _chart(flows).mark_line(strokeWidth=2, point=True).encode(x, y, colour)
    return _finish(lines, dots)


def _interval(law: Law, name: str) -> str:
    low, high = law.ci95[name]
    value = law.C if name == "C" else law.exponents[name]
    return f"{value:.2f}  [{low:.2f}, {high:.2f}]"


def demo_page(demo: "Demo") -> Page:
    length, dim = demo.middle
    runs, law, flow_law = demo.runs, demo.law, demo.flow_law
    plain_runs = runs[runs["burst"] == 1]
    middle = plain_runs[(plain_runs["length"] == length) & (plain_runs["dim"] == dim)]
    bursts = runs[(runs["length"] == length) & (runs["dim"] == dim)].groupby("burst")["plateau"].mean()
    speedup = bursts.iloc[0] / bursts.iloc[-1]
    page = Page(
        "When does attention become sparse?",
        "Small attention models sit on a plateau, seem to learn nothing, and then solve their task all at once. This page "
        "trains some, measures when that happens, and sets theory beside it.",
    )
    page.numbers(
        [
            (
                f"{len(runs)}",
                f"models trained, {int(runs['censored'].sum())} of them still on their plateau at the end",
            ),
            (
                f"{middle['plateau'].mean():.0f} steps",
                f"until emergence at length {length}, dimension {dim} (mean of {len(middle)} seeds)",
            ),
            (
                f"{law.exponents['length']:.2f} and {law.exponents['dim']:.2f}",
                "exponents of length and dimension in the law",
            ),
            (f"{speedup:.1f} times", f"sooner when the relevant token appears {int(bursts.index[-1])} times"),
        ]
    )
    page.section(
        "The task",
        "A sequence holds <i>T</i> random vectors of dimension <i>d</i>. The answer is a fixed linear map of <b>one</b> of them, the "
        "last. Nothing says which one matters. The model is one attention layer: it weighs the vectors, sums them, and multiplies "
        "the sum by a matrix. So it must learn two things: <b>where to look</b> (its attention, at first spread evenly) "
        "and <b>what to do there</b> (its matrix).",
        "Each half is useless without the other. With even attention the answer is drowned in noise, so the matrix learns slowly; "
        "with an untrained matrix it makes no difference where attention looks. That is why there is a plateau.",
    )
    page.section("A plateau, then a drop")
    page.chart(
        _loss_chart(demo),
        f"Test loss during training, length {length}, dimension {dim}. Dotted: the threshold at 0.2 of the start; the "
        "<i>plateau</i> is the number of steps until it is crossed. Drag to move, turn the wheel to zoom, double-click to reset.",
    )
    page.section("The matrix moves first")
    page.chart(
        _order_chart(demo),
        "The same runs from inside. The matrix begins to align with its target long before attention moves. Once it is aligned "
        "enough, attention gains from looking at the right place, which speeds up the matrix in turn, and both are done almost at once.",
    )
    page.section(
        "How long the plateau lasts",
        "Longer sequences and higher dimensions mean a longer plateau, and the growth is a power law. Theory says "
        "plateau ≈ √(π/2) · √<i>d</i> · <i>T</i> for long sequences.",
    )
    page.chart(_law_chart(demo), "Dots: one per run, at its measured emergence. Lines: the law fitted to all of them.")
    page.table(
        ["law: plateau = C · length^β · dim^α", "C", "β (length)", "α (dim)", "R²", "runs"],
        [
            [
                "training runs, measured",
                _interval(law, "C"),
                _interval(law, "length"),
                _interval(law, "dim"),
                f"{law.r2:.3f}",
                f"{law.runs} (+{law.censored} censored)",
            ],
            [
                "gradient flow, integrated",
                f"{flow_law.C:.2f}",
                f"{flow_law.exponents['length']:.2f}",
                f"{flow_law.exponents['dim']:.2f}",
                f"{flow_law.r2:.3f}",
                f"{flow_law.runs} cells",
            ],
            ["published (zucchet2025, Fig. 2 left)", "1.51", "0.99", "0.49", "0.999", ""],
        ],
    )
    page.text(
        "In brackets: 95% intervals from resampling seeds. The sizes here are small, so the exponents are not yet those of long "
        "sequences: the time that the matrix needs <i>after</i> the drop begins, of order <i>d</i>, still counts. "
        "<code>emergo figure zucchet2025/fig2</code> shows the limit."
    )
    page.section(
        "Repetition makes it happen sooner",
        f"When the relevant vector appears <i>B</i> times in the sequence, there is more to find and it is found sooner: at <i>B</i> = "
        f"{int(bursts.index[-1])} the plateau is {speedup:.1f} times shorter. The paper's two-variable theory predicts a gain of "
        f"{_gain(runs, length, dim, 'reduced'):.1f}. The model gains less, because the same push is "
        "divided among <i>B</i> attention scores. Taking that into account gives the exact flow, which predicts a gain of "
        f"{_gain(runs, length, dim, 'exact'):.1f}. The runs come somewhat later than it, since their matrix starts at random and the flow's at 0.",
    )
    page.chart(_burst_chart(demo), f"Steps until emergence against repetition in context, length {length}, dimension {dim}.")
    across = demo.repetition
    best = across.iloc[int(across["plateau"].to_numpy().argmin())]
    page.text(
        "Repetition across samples helps too. If, with probability <i>p</i>, the relevant vector is one special vector that "
        "returns in many samples, the matrix learns that direction quickly, attention follows, and the rest is learned with "
        f"attention already in place: in the flow, <i>p</i> = {best['repeat']:.2f} shortens the plateau by "
        f"{across['plateau'].iloc[0] / best['plateau']:.1f}, measured on data without any repetition."
    )
    page.section("Go on", "Every figure of the paper is one command; so is your own data.")
    page.code(
        "emergo figures                                   # what there is\n"
        "emergo figure zucchet2025/fig2 --out out/        # repetition, against the published laws\n"
        "emergo theory --length 512 --dim 64 --json       # one cell of the theory\n"
        "emergo measure logs.csv --metric loss --below 0.1\n"
        "emergo fit table.csv --y plateau --x dim length"
    )
    return page


def _gain(runs: pd.DataFrame, length: int, dim: int, column: str) -> float:
    values = runs[(runs["length"] == length) & (runs["dim"] == dim)].groupby("burst")[column].first()
    return float(values.iloc[0] / values.iloc[-1])
