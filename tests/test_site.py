"""What the site is made of: every public name in its reference, every figure in its gallery, links
that lead somewhere. That Sphinx builds it without a warning, tutorials included, is checked by
`make docs`."""

import inspect
import re
from pathlib import Path

import pytest

import emergo as em
from docs._site import api, build, gallery, tables
from emergo.papers import FIGURES

from .formulas import SYMBOL, formulas, of_rendered, of_source


@pytest.fixture(scope="module")
def pages():
    return build.site()


def test_every_public_name_is_in_the_reference(pages):
    text = "\n".join(text for page, text in pages.items() if page.parts[0] == "api")
    labels = re.findall(r"^\((api-[\w-]+)\)=$", text, re.MULTILINE)
    assert len({label.lower() for label in labels}) == len(labels), (
        "anchors do not tell capitals apart"
    )
    assert sorted(labels) == sorted({api.label(full) for full in api.homes()})
    front = [name for name in em.__all__ if not name.startswith("__")]
    assert all(
        f"| [`{name}`](#{api.label(f'emergo.{name}')})" in pages[Path("api/index.md")]
        for name in front
    )


def test_links_of_docstrings_lead_to_entries(pages):
    text = "\n".join(text for page, text in pages.items() if page.parts[0] == "api")
    assert not re.search(r"\]\[\]", text)
    linked = set(re.findall(r"\(#(api-[\w-]+)\)", text))
    assert linked <= {api.label(full) for full in api.homes()}
    assert api.label("emergo.papers.source_for") in linked


def test_an_entry_has_the_signature_the_words_and_the_methods(pages):
    study = pages[Path("api/study.md")].partition("## Study\n")[2].partition("\n## ")[0]
    assert "em.Study(\n    task: Task,\n" in study
    assert "Many runs that answer one question." in study
    assert "### Study.run" in study
    assert "__init__" not in study
    batch = pages[Path("api/contract.md")].partition("## Batch\n")[2]
    assert "    relevant: Bool[Array" in batch


def test_examples_stand_in_blocks():
    assert (
        api.fenced("Words.\n\n>>> 1 + 1\n2\n\nMore.")
        == "Words.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."
    )
    assert api.fenced("```python\n>>> 1\n1\n```") == "```python\n>>> 1\n1\n```"


def test_arguments_are_split_where_they_end():
    text = "a: dict[str, int], b: str=', ', *, c=(1, 2)"
    assert api.split_arguments(text) == ["a: dict[str, int]", "b: str=', '", "*", "c=(1, 2)"]


def test_every_figure_has_a_page_with_its_numbers(pages):
    numbers = gallery.pinned()
    for figure in FIGURES.values():
        text = pages[Path("gallery") / f"{gallery.page_name(figure)}.md"]
        assert f"emergo figure {figure.id} --preset paper" in text
        assert gallery.picture_of(figure), "python docs/_site/pictures.py draws it"
        for law in numbers.get(figure.id, {"laws": []})["laws"]:
            best = law.get("with_censored") or law
            assert f"`{best['formula']}`" in text
        for check in numbers.get(figure.id, {"checks": []})["checks"]:
            assert gallery.escape(check["name"]) in text
        assert gallery.page_name(figure) in pages[Path("gallery/index.md")]


def test_published_and_ours_stand_side_by_side(pages):
    text = pages[Path("gallery/zucchet2025-fig3.md")]
    assert "| exponent of `dim` | 1.29 | 1.3 | [1.24, 1.36] |" in text
    assert "**It agrees**" in text


REPRODUCTION = sorted(tables.PAGES.glob("*.md"))


def test_every_figure_is_in_a_table_of_its_paper():
    for page in REPRODUCTION:
        figures = {id for id in FIGURES if id.startswith(f"{page.stem}/")}
        assert tables.named(page.read_text()) == figures
    assert {page.stem for page in REPRODUCTION} == {"index", *gallery.PAPERS}


def test_a_table_has_what_is_pinned():
    law = {
        "name": "a law",
        "C": 0.886,
        "exponents": {"dim": 1.274},
        "ci95": {"C": None, "dim": [1.23, 1.32]},
        "r2": 0.99,
    }
    law |= {
        "censored": 0,
        "level": 1.009,
        "verdict": "disagrees",
        "why": "off",
        "published": {"C": 0.76, "exponents": {"dim": 1.29}},
    }
    law["published"] |= {"ci95": None, "r2": 0.995}
    check = {
        "name": "a | b",
        "measured": [[3.0, 2.5, 3.57, "seeds"]],
        "holds": True,
        "expected": None,
    }
    numbers = [
        check | {"published": 4.0, "verdict": "agrees"},
        check | {"published": "about 4", "verdict": "disagrees"},
    ]
    own = check | {"published": None, "verdict": None, "expected": "some"}
    rows = {"columns": ["d", "steps"], "rows": [[16, [12345.6, None]]]}
    pins = {
        "zucchet2025/fig3": {
            "laws": [law],
            "checks": [*numbers, own],
            "summary": {"two words": rows},
        }
    }
    page = "Words.\n\n<!-- {} -->\n\nMore."

    def written(mark):
        return tables.filled(page.format(mark), pins)

    link = "[3](../gallery/zucchet2025-fig3.md)"
    law_row = (
        f"| {link} | a law | C 0.76, dim 1.29 | C 0.886, dim 1.27 \\[1.23, 1.32] | 0.995; "
        f"0.990 | 1.01 | disagrees: off |"
    )
    assert law_row in written("laws: zucchet2025/fig3")
    assert f"| {link} | a \\| b | 4 | 3 \\[2.5, 3.57] | agrees |" in written(
        "numbers: zucchet2025/fig3"
    )
    assert "about 4" not in written("numbers: zucchet2025/fig3")
    assert f"| {link} | a \\| b | about 4 | 3 \\[2.5, 3.57] | disagrees |" in written(
        "words: zucchet2025/fig3"
    )
    assert "|  | a \\| b | expected: some | 3 \\[2.5, 3.57] | as expected |" in written(
        "checks: zucchet2025/fig3"
    )
    assert "| d | steps |\n| --- | --- |\n| 16 | 12,346; – |" in written(
        "summary: zucchet2025/fig3 two words"
    )
    assert "| 1 | 2 |  | 1 |  |" in written("overview: zucchet2025")
    assert written("laws: zucchet2025/fig3").startswith("Words.\n\n| figure |")
    with pytest.raises(KeyError):
        written("laws: zucchet2025/fig99")


def test_links_stay_within_the_site(pages):
    """Those to pages and pictures; Sphinx checks headings."""
    for page, text in pages.items():
        prose = re.sub(r"^(`{3,}).*?^\1`*$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\((?!https?:|#)([^)\s#]+)", prose):
            to = (Path("/site") / page.parent / target).resolve().relative_to("/site")
            there = (
                to in pages or (build.DOCS / to).exists() or (build.BUILD / "source" / to).exists()
            )
            assert there, f"{page} links to {target}"


def test_code_and_subpackages_that_pages_link_to_are_in_the_site(pages):
    assert "class Loudest" in pages[Path("source/examples-own_task.py.md")]
    assert "(api/theory.md)" in pages[Path("how.md")]
    assert (
        inspect.getsource(em.Study.run).splitlines()[0]
        in pages[Path("source/emergo-study-_study.py.md")]
    )


def test_pages_that_nobody_named_are_taken_in(pages):
    """A page that is added to docs/ comes into the table of contents by itself."""
    index = pages[Path("index.md")]
    contents = set(re.findall(r"^([\w/-]+)$", index, re.MULTILINE))
    assert "<!--" not in index
    top = {page.stem for page in pages if len(page.parts) == 1} - {"index"}
    assert top <= contents


def test_a_formula_is_drawn_as_it_is_written(pages):
    """The pages with source code have none."""
    texts = [text for page, text in pages.items() if page.parts[0] != "source"]
    found = [tex for text in texts for tex in formulas(text)]
    assert len(found) > 100
    assert [tex for tex in found if of_source(tex) != of_rendered(tex)] == []


@pytest.mark.parametrize(
    ("tex", "drawn"),
    [
        (r"\frac12 n", [("frac", ("1",), ("2",)), "n"]),
        (r"\tfrac12(1)", [("frac", ("1",), ("2",)), "(", "1", ")"]),
        (r"x^12", [("script", "x", (), ("1",)), "2"]),
        (r"\frac\alpha23", [("frac", (SYMBOL,), ("2",)), "3"]),
    ],
)
def test_an_argument_without_braces_is_one_token(tex, drawn):
    assert of_source(tex) == drawn
    assert of_rendered(tex) == drawn
