"""The gallery: one page per figure, from the figure itself, its pinned numbers and its picture."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emergo.core.terminal import duration, short
from emergo.papers import FIGURES, Figure

from .pictures import picture

ROOT = Path(__file__).parents[2]
PAPERS = {
    "zucchet2025": "*The emergence of sparse attention: impact of data distribution and benefits "
    "of repetition*, [arXiv 2505.17863](https://arxiv.org/abs/2505.17863).",
    "yuksel2026": "*Incremental learning of sparse attention patterns in Transformers*, [arXiv "
    "2602.19143](https://arxiv.org/abs/2602.19143).",
    "emergo": "Questions that the papers leave, answered with the same instruments.",
}
HOLDS = {True: "as expected", False: "not as expected", None: "undecided"}


def pinned() -> dict[str, Any]:
    """The laws and checks of every figure at the paper preset, which a test holds against what is
    made."""
    return json.loads((ROOT / "tests" / "papers" / "paper_preset.json").read_text())


def pages() -> dict[str, str]:
    """The pages of the gallery by their names."""
    numbers = pinned()
    made = {page_name(figure): page(figure, numbers.get(figure.id)) for figure in FIGURES.values()}
    return made | {"index": index(numbers)}


def page_name(figure: Figure) -> str:
    return figure.id.replace("/", "-")


def index(numbers: Mapping[str, Any]) -> str:
    """A picture, a title and a verdict for every figure."""
    lines = [
        "# Gallery",
        "",
        "Every figure of the two papers, and ours: made by one command each, with the published "
        "numbers beside.",
        "",
    ]
    for paper, words in PAPERS.items():
        figures = [figure for figure in FIGURES.values() if figure.id.startswith(f"{paper}/")]
        lines += [
            f"## {paper}",
            "",
            words,
            "",
            "```{toctree}",
            ":hidden:",
            *map(page_name, figures),
            "```",
            "",
        ]
        lines += ["| figure | shows | laws and checks |", "| --- | --- | --- |"]
        lines += [
            f"| {cell(figure)} | {figure.title} | {tally(numbers.get(figure.id))} |"
            for figure in figures
        ] + [""]
    return "\n".join(lines)


def cell(figure: Figure) -> str:
    """A small picture that leads to the page, or the name alone."""
    name = Path(figure.id).name
    image = (
        f"![{figure.id}](../img/gallery/{picture(figure.id).name})"
        if picture(figure.id).exists()
        else ""
    )
    return f"[{image} {name}]({page_name(figure)}.md)"


def tally(report: Mapping[str, Any] | None) -> str:
    """How many of the verdicts of a figure are which."""
    verdicts = [item["verdict"] for item in (*report["laws"], *report["checks"])] if report else []
    counts = [
        (verdicts.count("agrees"), "agree"),
        (verdicts.count("disagrees"), "disagree"),
        (verdicts.count("undecided"), "undecided"),
        (verdicts.count(None), "without a published value"),
    ]
    return ", ".join(f"{count} {words}" for count, words in counts if count) or "–"


def page(figure: Figure, report: Mapping[str, Any] | None) -> str:
    """What the paper shows, what was found, published and ours side by side, how to make it, what
    it costs."""
    paper, name = figure.id.split("/")
    parts = [f"# {paper}, {figure_name(name)}", f"*{sentence(figure.title)}*"]
    if picture(figure.id).exists():
        parts.append(f"![{figure.id}](../img/gallery/{picture(figure.id).name})")
    if report and report["laws"]:
        parts += ["## Laws", *map(law_table, report["laws"])]
    if report and report["checks"]:
        parts += ["## Checks", check_table(report["checks"])]
    if report is None:
        parts.append("Its numbers are not pinned yet; the command below makes it.")
    return "\n\n".join([*parts, "## Make it", commands(figure), cost(figure)]) + "\n"


def figure_name(name: str) -> str:
    return f"Figure {name.removeprefix('fig')}" if name.startswith("fig") else name


def sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def law_table(law: Mapping[str, Any]) -> str:
    """One row per number of a law: published, ours, our 95% interval."""
    published = law.get("published")
    law = {**law, **law.get("with_censored", {})}
    rows = ["| | published | ours | 95% interval |", "| --- | --- | --- | --- |"]
    for name, value in {"C": law["C"], **law["exponents"]}.items():
        theirs = (
            None
            if not published
            else published["C"]
            if name == "C"
            else published["exponents"].get(name)
        )
        low, high = law["ci95"].get(name) or (None, None)
        interval = "fixed" if low is None else f"[{low:.4g}, {high:.4g}]"
        rows.append(
            f"| {'C' if name == 'C' else f'exponent of `{name}`'} | {short(theirs)} | "
            f"{value:.4g} | {interval} |"
        )
    rows.append(f"| R² | {short(published['r2'] if published else None)} | {law['r2']:.4f} | |")
    counts = f"{law['runs']} runs, {law['censored']} of them censored"
    against = f"Published: {published['source']}. " if published else ""
    level = f"; level {law['level']:.2f}" if law["level"] is not None else ""
    verdict = {
        "agrees": "**It agrees**",
        "disagrees": "**It disagrees**",
        "undecided": "**It is undecided**",
        None: "No verdict",
    }[law["verdict"]]
    return (
        f"**{law['name']}**: `{law['formula']}`\n\n"
        + "\n".join(rows)
        + f"\n\n{against}{counts}. {verdict}: {law['why']}{level}."
    )


def check_table(checks: list[Mapping[str, Any]]) -> str:
    rows = ["| what | published or expected | ours | verdict |", "| --- | --- | --- | --- |"]
    for check in checks:
        beside = (
            short(check["published"])
            if check["published"] is not None
            else f"expected: {check['expected']}"
        )
        verdict = check["verdict"] if check["published"] is not None else HOLDS[check["holds"]]
        rows.append(
            " | ".join(
                [
                    "| " + escape(check["name"]),
                    escape(beside),
                    escape(short(check["measured"])),
                    verdict + " |",
                ]
            )
        )
    return "\n".join(rows)


def escape(words: str) -> str:
    """Text for a cell of a table: what Markdown would take for markup stands for itself."""
    for character in "\\|*_`<[$":
        words = words.replace(character, f"\\{character}")
    return words


def commands(figure: Figure) -> str:
    lines = [f"    emergo figure {figure.id} --preset paper --out out/"]
    if figure.presets["laptop"] != figure.presets["paper"]:
        lines.append(f"    emergo figure {figure.id} --out out/")
    return "\n".join(lines)


def cost(figure: Figure) -> str:
    """What it takes on two CPU cores."""
    trained = bool(figure.studies("paper"))
    words = [f"The paper preset takes about {duration(figure.seconds['paper'])} on two CPU cores."]
    if trained:
        runs = len(figure.runs("paper"))
        training = duration(figure.seconds["paper"])
        drawn = "those that come with the package are not trained again"
        words = [
            f"The paper preset has {runs} runs, about {training} of training on two CPU cores; "
            f"{drawn}."
        ]
    if figure.presets["laptop"] != figure.presets["paper"]:
        caveat = figure.caveat_of("laptop")
        words.append(
            f"The laptop preset takes about {duration(figure.seconds['laptop'])} there "
            f"({escape(caveat or 'smaller')})."
        )
    return " ".join(words)
