"""Tables of the pages under docs/reproduction, filled in when the site is built.

A page has a mark on a line of its own, and the site shows a table in its place:

    <!-- laws: zucchet2025/fig3 zucchet2025/fig13 -->

- `overview: PAPER`: the figures of a paper, with the number of verdicts of each kind.
- `laws: ID ...`: fitted laws next to the published ones.
- `checks: ID ...`: all other comparisons; `numbers: ID ...` only those with published numbers,
  `words: ID ...` the others.
- `summary: ID NAME`: a small table of a figure.

The numbers are those in tests/papers/paper_preset.json, which a test compares with the figures.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from docs._site.gallery import HOLDS, ROOT, escape, page_name
from docs._site.values import shown, with_interval
from emergo.papers import FIGURES

PAGES = ROOT / "docs" / "reproduction"
MARK = re.compile(r"<!-- (laws|checks|numbers|words|summary|overview): ([^\n]+?) -->")


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def headed(*names: str) -> list[str]:
    return [row(*names), row(*["---"] * len(names))]


def short_name(id: str, row: int = 0) -> str:
    """The number of a figure of a paper, or the name of one of ours, as a link to its page: in the
    first of its rows."""
    if row:
        return ""
    name = id.partition("/")[2].removeprefix("fig")
    return f"[{name}](../gallery/{page_name(FIGURES[id])}.md)"


def laws(pins: Mapping[str, Any], *ids: str) -> list[str]:
    rows = headed(
        "figure",
        "law",
        "published",
        "ours, 95% intervals",
        "R² (published; ours)",
        "level",
        "verdict",
    )
    for id in ids:
        for i, law in enumerate(pins[id]["laws"]):
            published = law["published"] or {}
            level = law["level"]
            theirs = escape(law_in_words(published)) if published else "–"
            r2 = (
                f"{shown(published.get('r2'))}; {law['r2']:.3f}"
                if published
                else f"{law['r2']:.3f}"
            )
            words = law["verdict"] or "–"
            if words in ("disagrees", "undecided"):
                words += f": {law['why']}"
            level = "–" if level is None else f"{level:.2f}"
            name = escape(law["name"])
            ours = [(name, law)]
            if law["censored"]:  # the fit that uses censored runs comes first
                runs = f"{law['censored']} censored runs"
                ours = [
                    (f"{name}, with its {runs}", law["with_censored"]),
                    (f"{name}, without its {runs}", law),
                ]
            for j, (name, fit) in enumerate(ours):
                cells = [theirs, escape(law_in_words(fit)), r2, level, escape(words)]
                if j:
                    cells = ["", cells[1], "", "", ""]
                rows.append(row(short_name(id, i + j), name, *cells))
    return rows


def law_in_words(law: Mapping[str, Any]) -> str:
    """The numbers of a law, each with its interval where it has one."""
    values = {"C": law["C"], **law["exponents"]}
    intervals = law["ci95"] or {}
    return ", ".join(
        f"{name} {with_interval(value, *intervals.get(name) or (None, None))}"
        for name, value in values.items()
    )


def checks(
    pins: Mapping[str, Any], *ids: str, chosen: Callable[[Any], bool] = lambda published: True
) -> list[str]:
    rows = headed("figure", "what", "published or expected", "ours", "verdict")
    for id in ids:
        for i, check in enumerate(
            check for check in pins[id]["checks"] if chosen(check["published"])
        ):
            published = check["published"]
            beside = shown(published) if published is not None else f"expected: {check['expected']}"
            verdict = check["verdict"] if published is not None else HOLDS[check["holds"]]
            rows.append(
                row(
                    short_name(id, i),
                    *map(escape, (check["name"], beside, shown(check["measured"]))),
                    verdict,
                )
            )
    return rows


def numbers(pins: Mapping[str, Any], *ids: str) -> list[str]:
    return checks(
        pins,
        *ids,
        chosen=lambda published: published is not None and not isinstance(published, str),
    )


def words(pins: Mapping[str, Any], *ids: str) -> list[str]:
    return checks(
        pins, *ids, chosen=lambda published: published is None or isinstance(published, str)
    )


def summary(pins: Mapping[str, Any], id: str, *name: str) -> list[str]:
    table = pins[id]["summary"][" ".join(name)]
    return [
        *headed(*table["columns"]),
        *(row(*(escape(shown(cell, "; ")) for cell in cells)) for cells in table["rows"]),
    ]


def overview(pins: Mapping[str, Any], paper: str) -> list[str]:
    rows = headed(
        "figure",
        "shows",
        "agrees with what is published",
        "disagrees",
        "undecided",
        "as we expected",
        "not as expected",
    )
    for id in [id for id in pins if id.startswith(f"{paper}/")]:
        every = [*pins[id]["laws"], *pins[id]["checks"]]
        own = [c for c in pins[id]["checks"] if c["published"] is None]
        held = [one["verdict"] for one in every]
        expected = [check["holds"] for check in own]
        counts = [held.count(word) for word in ("agrees", "disagrees", "undecided")]
        counts += [expected.count(True), expected.count(False)]
        rows.append(
            row(
                short_name(id),
                escape(FIGURES[id].title),
                *(str(count) if count else "" for count in counts),
            )
        )
    return rows


KINDS = {
    "laws": laws,
    "checks": checks,
    "numbers": numbers,
    "words": words,
    "summary": summary,
    "overview": overview,
}


def filled(text: str, pins: Mapping[str, Any]) -> str:
    """Replace the marks of a page by tables."""
    return MARK.sub(lambda mark: "\n".join(KINDS[mark[1]](pins, *mark[2].split())), text)


def named(text: str) -> set[str]:
    """Return the figures whose tables a page has."""
    names = {id for mark in MARK.finditer(text) if mark[1] != "overview" for id in mark[2].split()}
    return names & set(FIGURES)
