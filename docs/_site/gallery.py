"""The gallery: one page per figure, from the figure itself, its pinned numbers and its picture."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emergo.core.terminal import duration
from emergo.papers import FIGURES, Figure
from emergo.papers.index import read_index

from .pictures import picture
from .values import shown

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "img"
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
    """Return the page with one card per figure."""
    parts = ["# Gallery", "Every figure of the two papers, and ours. One command makes each."]
    for paper, words in PAPERS.items():
        figures = [figure for figure in FIGURES.values() if figure.id.startswith(f"{paper}/")]
        hidden = "\n".join(["```{toctree}", ":hidden:", *map(entry, figures), "```"])
        cards = "\n\n".join(card(figure, numbers.get(figure.id)) for figure in figures)
        parts += [f"## {paper}", words, hidden, f"::::{{container}} cards\n{cards}\n::::"]
    return "\n\n".join(parts) + "\n"


def entry(figure: Figure) -> str:
    """Return a short entry of the table of contents."""
    paper, name = figure.id.split("/")
    short_name = f"{paper}, Fig. {name.removeprefix('fig')}" if name.startswith("fig") else name
    return f"{short_name} <{page_name(figure)}>"


def card(figure: Figure, report: Mapping[str, Any] | None) -> str:
    """Return a picture, a title, the verdicts and links for the index."""
    name = page_name(figure)
    image = picture_of(figure)
    lines = [f"[![{figure.id}]({image})]({name}.md)"] if image else []
    lines += [f"**[{heading(figure)}]({name}.md)**", badges(report), links(figure)]
    return "\n\n".join([":::{container} card", *filter(None, lines)]) + "\n:::"


def picture_of(figure: Figure) -> str | None:
    """Return the path of the picture, seen from the gallery.

    Our figures may have the picture of a page, or one of the laptop preset.
    """
    paper, name = figure.id.split("/")
    if picture(figure.id).exists():
        return f"../img/gallery/{picture(figure.id).name}"
    files = (f"{name}.png", f"{name}-laptop.png") if paper == "emergo" else ()
    return next((f"../img/{file}" for file in files if (IMAGES / file).exists()), None)


def heading(figure: Figure) -> str:
    """Return the title of a page: the number of a paper's figure and what it shows."""
    name = Path(figure.id).name
    title = sentence(figure.title).removesuffix(".")
    return f"Fig. {name.removeprefix('fig')}: {title}" if name.startswith("fig") else title


def links(figure: Figure) -> str:
    """Return links to the essay or the notes about a figure, and to its code."""
    paper, name = figure.id.split("/")
    essay = ROOT / "docs" / f"{name}.md"
    notes = f"../{essay.name}" if essay.exists() else f"../reproduction/{paper}.md"
    words = "essay" if essay.exists() else "notes"
    code = "/".join(read_index()[figure.id].module.split("."))
    return f"[{words}]({notes}) · [code](../../{code}.py)"


def badges(report: Mapping[str, Any] | None) -> str:
    """Return the number of verdicts of each kind, one badge each."""
    verdicts = [item["verdict"] for item in (*report["laws"], *report["checks"])] if report else []
    words = {"agrees": "agree", "disagrees": "disagree", "undecided": "undecided"}
    counted = ((kind, verdicts.count(kind)) for kind in words)
    return " ".join(f"[{n} {words[kind]}]{{.badge .{kind}}}" for kind, n in counted if n)


def page(figure: Figure, report: Mapping[str, Any] | None) -> str:
    """Return the page of a figure: picture, laws and checks next to the published ones, cost."""
    image = picture_of(figure)
    parts = [f"# {heading(figure)}", f"`{figure.id}` · {links(figure)}", badges(report)]
    parts += [f"![{figure.id}]({image})"] if image else []
    if report and report["laws"]:
        parts += ["## Laws", *map(law_table, report["laws"])]
    if report and report["checks"]:
        parts += ["## Checks", check_table(report["checks"])]
    if report is None:
        parts.append("Its numbers are not pinned yet; the command below makes it.")
    parts += ["## Make it", commands(figure), cost(figure)]
    return "\n\n".join(filter(None, parts)) + "\n"


def sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def law_table(law: Mapping[str, Any]) -> str:
    """One row per number of a law: published, ours, our 95% interval."""
    published = law.get("published")
    law = {**law, **(law.get("with_censored") or {})}
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
        interval = "fixed" if low is None else f"[{low:.3g}, {high:.3g}]"
        rows.append(
            f"| {'C' if name == 'C' else f'exponent of `{name}`'} | {shown(theirs)} | "
            f"{value:.3g} | {interval} |"
        )
    rows.append(f"| R² | {shown(published['r2'] if published else None)} | {law['r2']:.3f} | |")
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
            shown(check["published"])
            if check["published"] is not None
            else f"expected: {check['expected']}"
        )
        verdict = check["verdict"] if check["published"] is not None else HOLDS[check["holds"]]
        rows.append(
            " | ".join(
                [
                    "| " + escape(check["name"]),
                    escape(beside),
                    escape(shown(check["measured"])),
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
        words = [
            f"The paper preset has {runs} runs, about {training} of training on two CPU cores; "
            f"runs that come with the package are not trained again."
        ]
    if figure.presets["laptop"] != figure.presets["paper"]:
        caveat = figure.caveat_of("laptop")
        words.append(
            f"The laptop preset takes about {duration(figure.seconds['laptop'])} there "
            f"({escape(caveat or 'smaller')})."
        )
    return " ".join(words)
