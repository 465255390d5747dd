"""A page that needs nothing but itself: text, tables and zoomable charts in one HTML file."""

import dataclasses
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .._files import staged

if TYPE_CHECKING:
    import altair as alt

_CSS = """
:root { --ink: #1c1c1c; --soft: #5f5f5f; --line: #e2e2e2; --tint: #f6f7f8; --mark: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 880px; padding: 2.5rem 1.25rem 4rem; color: var(--ink); background: #fff;
       font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .4rem; }
.lead { font-size: 1.08rem; color: var(--soft); margin: 0 0 1.4rem; }
.chart { width: 100%; margin: .8rem 0 .2rem; overflow-x: auto; }
.caption { color: var(--soft); font-size: .86rem; margin: 0 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; margin: .8rem 0; }
th, td { text-align: left; padding: .4rem .7rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); font-size: .82rem; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 12px; margin: 1.2rem 0; }
.numbers div { background: var(--tint); border-radius: 8px; padding: .8rem 1rem; }
.numbers b { display: block; font-size: 1.5rem; line-height: 1.25; color: var(--mark); }
.numbers span { font-size: .84rem; color: var(--soft); }
code, pre { font: .88em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: var(--tint); }
pre { padding: .8rem 1rem; border-radius: 8px; overflow-x: auto; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); color: var(--soft); font-size: .82rem; }
@media print { body { max-width: none; padding: 0; } h2 { break-after: avoid; } .chart { break-inside: avoid; } }
"""


@dataclasses.dataclass
class Page:
    """Builds a page from top to bottom. Text is HTML of ours; values that come from data are escaped."""

    title: str
    lead: str
    _parts: list[str] = dataclasses.field(default_factory=list)
    _specs: list[str] = dataclasses.field(default_factory=list)

    def section(self, heading: str, *paragraphs: str) -> None:
        self._parts.append(f"<h2>{heading}</h2>" + "".join(f"<p>{p}</p>" for p in paragraphs))

    def text(self, *paragraphs: str) -> None:
        self._parts.append("".join(f"<p>{p}</p>" for p in paragraphs))

    def numbers(self, values: Sequence[tuple[str, str]]) -> None:
        """A row of headline numbers: (value, what it is)."""
        cells = "".join(f"<div><b>{html.escape(v)}</b><span>{what}</span></div>" for v, what in values)
        self._parts.append(f'<div class="numbers">{cells}</div>')

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        top = "".join(f"<th>{h}</th>" for h in head)
        body = "".join(
            "<tr>" + "".join(f'<td class="{"number" if i else ""}">{html.escape(c)}</td>' for i, c in enumerate(row)) + "</tr>"
            for row in rows
        )
        self._parts.append(f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>")

    def code(self, text: str) -> None:
        self._parts.append(f"<pre>{html.escape(text)}</pre>")

    def chart(self, chart: "alt.TopLevelMixin", caption: str) -> None:
        """A chart; drag to move it, turn the wheel to zoom, double-click to reset."""
        name = f"chart{len(self._specs)}"
        spec = json.dumps(chart.to_dict()).replace("</", "<\\/")  # "</" would end the script element early
        self._specs.append(f"[{json.dumps('#' + name)}, {spec}]")
        self._parts.append(f'<div class="chart" id="{name}"></div><p class="caption">{caption}</p>')

    def html(self, footer: str) -> str:
        import vl_convert

        script = (
            f"for (const [at, spec] of [{', '.join(self._specs)}]) "
            "vegaEmbed(at, spec, {actions: {export: true, source: false, compiled: false, editor: false}});"
        )
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{_CSS}</style>"
            f"<script>{vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')}</script></head><body>"
            f'<h1>{html.escape(self.title)}</h1><p class="lead">{self.lead}</p>{"".join(self._parts)}'
            f"<footer>{footer}</footer><script>{script}</script></body></html>\n"
        )

    def write(self, path: Path, footer: str) -> None:
        """Writes the page whole or not at all."""
        with staged(path.parent) as stage:
            (stage / path.name).write_text(self.html(footer), encoding="utf-8")
