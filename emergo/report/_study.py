"""`emergo report`: the studies of a folder on one page. Reads what is there and runs no code that a study names."""

import html
import os
import platform
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from .. import __version__
from .._errors import InputError
from .._files import atomic_write, output_folder, read_regular
from .._terminal import fit_lines, plateau_range, short
from ..measure import Law, law_json
from ..studies import Plan, StudyFolder, cell_summary, study_curves, study_law, study_table
from ._page import log_axis, page, script_json

MOST_RUNS, MOST_POINTS = 120, 150  # of the curves on a page, so that it stays small however many runs there are
MOST_ROWS = 200  # of the table of cells
LARGEST = 2**28  # bytes of a page that is looked at before it is written over
MADE_BY = "Made by <code>emergo"  # what the footer of every page says
Chart = dict[str, Any]


class Section(NamedTuple):
    """What a page says of one study."""

    text: str
    charts: dict[str, Chart]
    tables: dict[str, list[dict[str, Any]]]
    report: dict[str, Any]


def report_studies(folder: Path | str, out: Path | str | None = None) -> dict[str, Any]:
    """Writes a page on all studies of a folder, by default `report.html` in it; returns what it says as plain data."""
    place = StudyFolder(folder)
    path = Path(out) if out is not None else place.path / "report.html"
    if os.path.isdir(path):
        path = path / "report.html"
    _check_out(path)
    plans = place.read()
    sections = [_section(place, plan, f"s{n}", heading=len(plans) > 1) for n, plan in enumerate(plans)]
    output_folder(path.parent)
    names = ", ".join(dict.fromkeys(section.report["study"] for section in sections))
    runs, finished = (sum(section.report[what] for section in sections) for what in ("runs", "finished"))
    atomic_write(
        path,
        page(
            "study.html",
            title=html.escape(names),
            lead=f"{finished} of {runs} runs are finished.",
            sections="\n".join(section.text for section in sections),
            charts=script_json({name: chart for section in sections for name, chart in section.charts.items()}),
            tables=script_json({name: table for section in sections for name, table in section.tables.items()}),
            footer=f"emergo {__version__} on {platform.machine()}. {MADE_BY} report</code>.",
        ),
    )
    return {"studies": [section.report for section in sections], "files": [str(path)]}


def _check_out(path: Path) -> None:
    """An `InputError` where a page would get the name of something else, or be written over anything but a page of ours."""
    if path.suffix != ".html":
        raise InputError(f"--out {path}: the page is an HTML file; name it like page.html")
    if not os.path.exists(path):
        return
    try:
        ours = MADE_BY.encode() in read_regular(os.path.realpath(path), LARGEST)
    except (OSError, ValueError):
        ours = False
    if not ours:
        raise InputError(f"--out {path}: this file is there and is no page of this command; choose another name")


def _section(folder: StudyFolder, plan: Plan, prefix: str, heading: bool) -> Section:
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        table = study_table(folder, plan)
    cells = cell_summary(table, plan.axes, [run.values for run in plan.runs])
    report: dict[str, Any] = {"study": plan.name, "axes": plan.axes, "runs": len(plan.runs), "finished": len(table)}
    parts = [f"<h2>{html.escape(plan.name)}</h2>"] if heading else []
    parts.append(f"<p>{_description(plan)}</p>")
    parts += [f'<p class="failed">{html.escape(str(each.message))}</p>' for each in noted]
    if not len(table):
        return Section("\n".join([*parts, "<p>No run is finished yet.</p>"]), {}, {}, report | {"law": None})
    states = ", ".join(f"{count} {state}" for state, count in table["state"].value_counts().items())
    parts.append(f"<p>{f'{len(table)} of {len(plan.runs)} runs are finished: ' if heading else 'Outcomes: '}{states}.</p>")
    charts, tables = {}, {}
    for name, title in (("loss", "Test loss"), ("attention", "Attention on the relevant tokens, of the head with most")):
        chart, rows, shown = _curves(folder, plan, table, name, f"{prefix}_{name}")
        if chart is not None:
            charts[f"{prefix}-{name}"], tables[f"{prefix}_{name}"] = chart, rows
            parts.append(f'<h3>{title}</h3>\n<div class="chart" id="{prefix}-{name}"></div>')
            some = "" if shown == len(table) else f" {shown} of {len(table)} runs are drawn, evenly chosen."
            parts.append(f'<p class="caption">One line per run.{some}</p>')
    law = _law(table, plan)
    chart, rows = _plateaus(table, plan, law, f"{prefix}_plateau")
    if chart is not None:
        charts[f"{prefix}-plateau"] = chart
        tables |= rows
        parts.append(f'<h3>Plateaus</h3>\n<div class="chart" id="{prefix}-plateau"></div>')
        parts.append('<p class="caption">Steps until emergence, one point per run; hollow points are lower bounds.</p>')
    if isinstance(law, Law):
        words = "\n".join(fit_lines(law_json(law)))
        parts.append(f"<h3>The law</h3>\n<pre>{html.escape(words)}</pre>")
    elif law is not None:
        parts.append(f"<p>No law yet: {html.escape(law)}</p>")
    parts.append(f"<h3>Cells</h3>\n{_cell_rows(cells, plan.axes)}")
    failed = table[table["state"] == "failed"]
    if len(failed):
        reasons = failed["reason"] if "reason" in failed else pd.Series("failed", index=failed.index)
        counted = reasons.fillna("failed").value_counts()
        counts = [(f"{count} run{'s' if count > 1 else ''}", str(reason)) for reason, count in counted.items()]
        items = "".join(f"<li>{runs}: {html.escape(reason)}</li>" for runs, reason in counts)
        parts.append(f'<h3>Failures</h3>\n<ul class="failed">{items}</ul>')
    found = law_json(law) if isinstance(law, Law) else None
    return Section("\n".join(parts), charts, tables, report | {"cells": cells, "law": found})


def _description(plan: Plan) -> str:
    """What its runs are made of, as the study has it."""
    parts = []
    for part in ("task", "model", "optimizer", "train"):
        values = plan.study.get(part)
        if isinstance(values, Mapping) and values:
            words = _parts({name: value for name, value in values.items() if name not in plan.axes})
            parts.append(f"<b>{part}</b>: {html.escape(words)}")
    return "<br>".join(parts)


def _parts(values: Mapping[str, Any]) -> str:
    """A type with its settings in words; one within another in brackets: SingleLocation, length 8, repeat Switch (at 100)."""

    def value(given: Any) -> str:
        if not isinstance(given, Mapping) or "type" not in given:
            return short(given)
        rest = _parts({name: inner for name, inner in given.items() if name != "type"})
        return f"{short(given['type'])} ({rest})" if rest else short(given["type"])

    return ", ".join(value(given) if name == "type" else f"{name} {value(given)}" for name, given in values.items())


def _law(table: pd.DataFrame, plan: Plan) -> Law | str | None:
    """The law that the study asks for, or why there is none yet; None where it asks for none."""
    try:
        return study_law(table, plan)
    except InputError as error:
        return str(error)


def _curves(
    folder: StudyFolder, plan: Plan, table: pd.DataFrame, name: str, data: str
) -> tuple[Chart | None, list[dict[str, Any]], int]:
    """A chart of one curve of the runs, its data, and how many runs it has."""
    chosen = table["identity"].iloc[np.unique(np.linspace(0, len(table) - 1, MOST_RUNS).astype(int))]
    units = [unit._replace(runs=[run for run in unit.runs if run.identity in set(chosen)]) for unit in plan.units]
    curves = study_curves(folder, plan._replace(units=units))
    columns = [column for column in curves.columns if column == name or str(column).startswith(f"{name}_")]
    columns = [column for column in columns if column == name or name != "loss"]
    by = _axis(table, plan.axes)
    if not columns or not len(curves):
        return None, [], 0
    rows = []
    for identity, run in curves.groupby("identity", sort=False):
        thin = run.iloc[np.unique(np.linspace(0, len(run) - 1, MOST_POINTS).astype(int))]
        values = thin[columns].max(axis=1)
        label = _label(thin[by].iloc[0]) if by is not None else "all"
        rows += [
            {"r": identity, "x": int(step), "y": float(y), "c": label} for step, y in zip(thin["step"], values, strict=True)
        ]
    encoding: Chart = {
        "x": {"field": "x", "type": "quantitative", "title": "training step"},
        "y": {"field": "y", "type": "quantitative", "title": name},
        "detail": {"field": "r", "type": "nominal"},
        "color": _colour(by, symbolSize=500),
    }
    mark = {"type": "line", "strokeWidth": 1.2, "opacity": 0.8}
    zoom = [{"name": "zoom", "select": "interval", "bind": "scales"}]
    return {"data": {"name": data}, "mark": mark, "encoding": encoding, "params": zoom}, rows, len({row["r"] for row in rows})


def _plateaus(
    table: pd.DataFrame, plan: Plan, law: Law | str | None, data: str
) -> tuple[Chart | None, dict[str, list[dict[str, Any]]]]:
    """Plateaus against the axis of positive numbers that has the most values, with the law where there is one."""
    numeric = [axis for axis in plan.axes if pd.api.types.is_numeric_dtype(table[axis]) and (table[axis] > 0).all()]
    seen = table[table["plateau"].notna() & (table["plateau"] > 0)]
    if not numeric or not len(seen):
        return None, {}
    x = _axis(table, numeric) or numeric[0]
    by = _axis(table, [axis for axis in plan.axes if axis != x])
    points = seen.iloc[np.unique(np.linspace(0, len(seen) - 1, 2000).astype(int))]
    labels = [_label(value) for value in points[by]] if by is not None else ["all"] * len(points)
    columns = (points[x], points["plateau"], points["censored"], labels)
    rows = [{"x": float(a), "y": float(b), "bound": bool(c), "c": d} for a, b, c, d in zip(*columns, strict=True)]
    scale = {"type": "log", "nice": False, "padding": 12}
    values = sorted({row["x"] for row in rows})
    ticks = {"values": values} if len(values) <= 12 else {}  # else a logarithmic axis may have none at the values there are
    heights = log_axis(row["y"] for row in rows)
    encoding: Chart = {
        "x": {"field": "x", "type": "quantitative", "title": f"{x} (log scale)", "scale": scale, "axis": ticks},
        "y": {"field": "y", "type": "quantitative", "title": "plateau in steps (log scale)", "scale": scale, "axis": heights},
        "color": _colour(by),
    }
    shape = {"condition": {"test": "datum.bound", "value": 0}, "value": 0.8}
    layers: list[Chart] = [
        {"data": {"name": data}, "mark": {"type": "point", "filled": True, "size": 45}, "encoding": {"fillOpacity": shape}}
    ]
    tables = {data: rows}
    if isinstance(law, Law) and x in law.exponents and law.y == "plateau":
        cells = seen.drop_duplicates([axis for axis in plan.axes if axis in seen])
        labels = [_label(value) for value in cells[by]] if by is not None else ["all"] * len(cells)
        points = zip(cells[x], law.predict(cells), labels, strict=True)
        tables[f"{data}_law"] = [{"x": float(a), "y": float(b), "c": label} for a, b, label in points]
        layers.append({"data": {"name": f"{data}_law"}, "mark": {"type": "line", "strokeWidth": 1.5}})
    return {"encoding": encoding, "layer": layers}, tables


def _axis(table: pd.DataFrame, axes: Sequence[str]) -> str | None:
    """The axis with the most values, if one has several."""
    values = {axis: len(set(table[axis].astype(str))) for axis in axes}
    return next((axis for axis in axes if values[axis] == max(values.values()) > 1), None)


def _label(value: Any) -> Any:
    return value if isinstance(value, str) else float(value) if isinstance(value, int | float | np.number) else str(value)


def _colour(by: str | None, **legend: Any) -> Chart:
    if by is None:
        return {"value": "#0072B2"}
    shown = {"orient": "top"} | legend
    return {"field": "c", "type": "ordinal", "title": by, "legend": shown, "scale": {"scheme": "viridis"}}


def _cell_rows(cells: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> str:
    """The table of cells; a median that rests on censored runs is a lower bound."""
    heads = "".join(
        f"<th>{html.escape(str(name))}</th>" for name in (*axes, "runs", "plateau", "min-max", "censored", "failed")
    )
    rows = []
    for cell in cells[:MOST_ROWS]:
        middle = spread = "–"
        if cell["plateau"] is not None:
            middle = f"{'at least ' if cell['bound'] else ''}{cell['plateau']:.0f}"
            spread = plateau_range(cell)
        values = [short(cell[axis]) for axis in axes] + [f"{cell['runs']} of {cell['planned']}", middle, spread]
        values += [str(cell["censored"]), str(cell["failed"])]
        rows.append("<tr>" + "".join(f'<td class="number">{html.escape(value)}</td>' for value in values) + "</tr>")
    more = f"<p>{len(cells) - MOST_ROWS} more cells.</p>" if len(cells) > MOST_ROWS else ""
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>{more}'
