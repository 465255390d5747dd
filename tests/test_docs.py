"""The documentation: its links lead somewhere, its commands parse, the files and names that it
shows exist."""

import ast
import contextlib
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

import emergo as em
from emergo.cli._figures import Figure
from emergo.cli._main import Command
from emergo.cli._parse import parse as parse_arguments
from emergo.cli._train import read_study
from emergo.papers import find_figure

ROOT = Path(__file__).parents[1]
PAGES = [
    page
    for part in ("*.md", "docs/*.md", "docs/tutorials/*.md", "docs/reproduction/*.md")
    for page in sorted(ROOT.glob(part))
]
NAMES = {
    "demo",
    "figures",
    "figure",
    "train",
    "records",
    "add",
    "theory",
    "measure",
    "fit",
    "bench",
    "flows",
    "training",
}
NAMES |= {
    "forecast",
    "doctor",
    "completion",
    "view",
    "sample",
    "study",
    "run",
    "status",
    "show",
    "grow",
    "export",
}
MADE = (ROOT / "docs" / "gallery", ROOT / "docs" / "api")
"""Folders of pages that are made with the site; tests/test_site.py looks at links to them."""
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    words = re.sub(
        r"[^\w\- ]", "", re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    )
    return words.replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {
        slug(heading)
        for heading in re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE)
    }


@each_page
def test_no_conflict_of_a_merge_is_left(page):
    assert not re.findall(r"^(?:<{7}|>{7}) .*$", page.read_text(), re.MULTILINE)


@each_page
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text()))
    for link in (link for link in links if not link.startswith("http")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if target.parent in MADE:
            continue
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in anchors(target), (
                f"{page.name} links to {link}, but {target.name} has no such heading"
            )


@each_page
def test_files_that_are_named_exist(page):
    names = re.findall(
        r"\b(?:emergo|tests|benchmarks|examples|docs)/[\w/-]+\.(?:py|toml|md|csv|parquet|png)\b",
        page.read_text(),
    )
    missing = [name for name in names if not (ROOT / name).exists()]
    assert not missing


def commands(page: Path) -> list[str]:
    """The commands of `emergo` that a page shows, in blocks and within sentences, but for those
    with placeholders."""
    text = re.sub(r" *\\\n *", " ", page.read_text())  # a backslash continues a line
    blocks = re.findall(
        r"^(?:    (?:\$ )?|!)(emergo .*)$", text, re.MULTILINE
    )  # of a notebook they begin with !
    shown = [
        re.split(r"\s{2,}", line)[0] for line in blocks
    ]  # what a command does stands beside it
    shown += [
        re.sub(r"\s+", " ", span)
        for span in re.findall(r"(?<!`)`(emergo [^`]+)`(?!`)", without_code(text))
    ]
    return [line for line in shown if not re.search(r"\b[A-Z]{2,}\b|…|\.\.\.|\[", line)]


def parse(words: list[str]) -> None:
    """Reads a command line as `emergo` does, without running it."""
    if set(words) <= NAMES:  # the name of a command, not a use of it
        words = [*words, "--help"]
    with contextlib.suppress(SystemExit):  # of the help; wrong words are an InputError
        if words[0] == "train":
            read_study(words[1:])
            return
        command = parse_arguments(Command, words)
        if isinstance(command, Figure):
            assert all(command.preset in find_figure(id).presets for id in command.id)


@each_page
def test_commands_parse(page, monkeypatch):
    if page.stem == "CHANGELOG":
        pytest.skip("the changelog names commands of earlier versions")
    monkeypatch.chdir(ROOT)
    for line in dict.fromkeys(commands(page)):
        try:
            parse(shlex.split(line)[1:])
        except em.InputError as error:
            pytest.fail(f"{page.name}: `{line}`: {error}")


def test_the_commands_of_the_release_parse():
    text = (ROOT / ".ci" / "release").read_text()
    lines = re.findall(r'/bin/emergo" (\w.*?)(?= >| &&|$)', text, re.MULTILINE)
    assert {line.split()[0] for line in lines} == {"doctor", "demo"}
    for line in lines:
        parse([*shlex.split(line), "--json"])


def test_commands_are_found():
    """Else the test above would pass on anything."""
    assert "emergo figure zucchet2025/fig1" in commands(ROOT / "README.md")
    assert len(commands(ROOT / "docs" / "guide.md")) > 10
    with pytest.raises(em.InputError, match="pressett"):
        parse(["figure", "zucchet2025/fig3", "--pressett", "paper"])


def test_the_start_page_has_all_commands():
    kinds = (getattr(kind, "__origin__", kind) for kind in get_args(Command))
    names = {kind.__name__.lower().removesuffix("command") for kind in kinds}
    assert {"demo", "train", "forecast"} <= names
    assert names == {line.split()[1] for line in commands(ROOT / "docs" / "start.md")}


def test_the_readme_is_short():
    """What comes on top of it belongs on a page of docs/."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 90
    assert max(map(len, lines)) <= 120


@each_page
def test_python_snippets_use_names_that_exist(page):
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        lines = code.splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        tree = ast.parse("\n".join(line[indent:] for line in lines))
        attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        used = {
            node.attr
            for node in attributes
            if isinstance(node.value, ast.Name) and node.value.id == "em"
        }
        assert used <= set(dir(em)), used - set(dir(em))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and "emergo" in ast.unparse(node):
                exec(ast.unparse(node), {})


@pytest.mark.slow
def test_the_script_of_the_page_on_studies_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "studies.md").read_text()
    section = page.partition("## Compare, continue and stop")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 5
    exec("".join(blocks), {"__name__": "the_script"})
    printed = capsys.readouterr().out
    assert "12 runs: " in printed  # two models, three decays, two seeds
    assert "0.1\n" in printed  # the largest weight decay
    assert re.search(r"^resumed +2 +\d", printed, re.MULTILINE)
    assert printed.count("stopped by EarlyStopping") == 2
    assert (tmp_path / "attention.png").exists()


@pytest.mark.slow
def test_the_first_snippet_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    exec(code, {})
    printed = capsys.readouterr().out
    assert "9 runs = 3 cells x 3 seeds" in printed
    assert printed.count("9 runs: 9 reached") == 2
    shown = re.search(r"# (plateau = .*)", code)
    assert shown is not None
    assert shown[1] in printed
