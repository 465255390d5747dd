"""Build the site: `make docs`, or `python docs/_site/build.py`. It writes under docs/_build only.

The pages of docs/ are copied into docs/_build/source, together with the gallery (`gallery.py`) and
the reference (`api.py`). Files outside of docs/ that pages link to get a page each. Then Sphinx
executes the tutorials and writes docs/_build/html. Warnings are errors.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":  # as a script, the repository is not on the module path
    sys.path.insert(0, str(Path(__file__).parents[2]))

from docs._site import api, gallery, tables

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BUILD = ROOT / "docs" / "_build"
TOP_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the site that are at the top of the repository."""
CODE = {".py": "python", ".toml": "toml", ".sh": "bash", ".md": "markdown"}
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")


def sources() -> dict[Path, str]:
    """Return the pages that are written by hand, by their places in the site."""
    pages = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in TOP_PAGES)]
    pins = gallery.pinned()
    return {
        place_of(page): tables.filled(page.read_text(), pins)
        for page in pages
        if "_build" not in page.parts
    }


def place_of(path: Path) -> Path:
    """Return the place in the site of a page, or of the page of a file."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    if path.parent == ROOT and path.suffix == ".md":
        return Path(path.name)
    return Path("source") / f"{'-'.join(path.relative_to(ROOT).parts)}.md"


def relinked(text: str, page: Path, extra: dict[Path, str]) -> str:
    """Return a page with links that stay within the site.

    Files of code and records get a page, which is added to `extra`. Links to subpackages lead to
    the reference, and links to other folders become plain text.
    """
    origin = ROOT if page.name in TOP_PAGES else (DOCS / page).parent
    up = "../" * (len(page.parts) - 1)

    def link(match: re.Match[str]) -> str:
        words = match[1]
        target = (origin / match[2]).resolve()
        anchor = match[3] or ""
        if not target.is_relative_to(ROOT) or not target.exists():
            return match[0]  # Sphinx says that it leads nowhere
        if target.is_dir():
            name = ""
            if target.is_relative_to(ROOT / "emergo"):
                name = ".".join(target.relative_to(ROOT / "emergo").parts)
            if name in api.subpackages():
                return f"{words}({up}api/{name.replace('.', '-')}.md)"
            return words[1:-1]
        if target.is_relative_to(DOCS) or target.name in TOP_PAGES:
            return f"{words}({up}{place_of(target)}{anchor})"
        if target.suffix in CODE:
            extra[place_of(target)] = code_page(target)
            return f"{words}({up}{place_of(target)})"
        if target.name == "README.md":
            return f"{words}({up}index.md)"
        copy = BUILD / "source" / "files" / target.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(target, copy)
        return f"{words}({up}files/{target.name})"

    # Blocks of code have no links.
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(parts))


def code_page(path: Path) -> str:
    """Return a page that shows a file of code."""
    name = path.relative_to(ROOT)
    return (
        f"---\norphan: true\n---\n\n# `{name}`\n\n````{CODE[path.suffix]}\n{path.read_text()}````\n"
    )


def site() -> dict[Path, str]:
    """Return all pages of the site."""
    pages = sources()
    extra = {}
    index = pages[Path("index.md")]
    named = set(re.findall(r"^(?:.*<)?([\w/-]+)>?$", index, re.MULTILINE))
    rest = [
        page.stem for page in pages if len(page.parts) == 1 and page.stem not in named | {"index"}
    ]
    pages[Path("index.md")] = index.replace("<!-- pages -->", "\n".join(rest))
    pages |= {Path("gallery") / f"{name}.md": text for name, text in gallery.pages().items()}
    pages = {page: relinked(text, page, extra) for page, text in pages.items()}
    pages |= {Path("api") / f"{name}.md": text for name, text in api.pages().items()}
    return pages | extra


def stage() -> Path:
    """Write the pages and pictures; return the folder that Sphinx reads."""
    shutil.rmtree(BUILD, ignore_errors=True)
    folder = BUILD / "source"
    for page, text in site().items():
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(text)
    shutil.copytree(DOCS / "img", folder / "img")
    return folder


def sphinx_command(folder: Path) -> list[str]:
    """Return the command that builds the site from a folder of pages."""
    options = ["-b", "html", "-W", "--keep-going", "-j", "2"]
    options += ["-c", str(DOCS / "_site"), "-d", str(BUILD / "doctrees")]
    return [sys.executable, "-m", "sphinx", *options, str(folder), str(BUILD / "html")]


def sphinx_environment() -> dict[str, str]:
    """Return the environment of Sphinx and of the kernels that execute the tutorials."""
    scripts = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    modules = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {
        "PATH": scripts,
        "PYTHONPATH": modules,
        # Tutorials train for seconds, and most of their time is compilation. It is faster without
        # LLVM's optimizations.
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TTY_COMPATIBLE": "0",  # commands of a notebook print no live tables
    }


def main() -> None:
    command = sphinx_command(stage())
    # Sphinx shows its progress. Of its messages, leave out the warning of every kernel that others
    # on this machine could read the connection to it.
    with subprocess.Popen(
        command, env=sphinx_environment(), stderr=subprocess.PIPE, text=True
    ) as sphinx:
        assert sphinx.stderr is not None
        for line in sphinx.stderr:
            if "Kernel is running over TCP" not in line:
                print(line, end="", file=sys.stderr)
    if sphinx.returncode:
        sys.exit("the site was not built without warnings")
    print(f"open {BUILD / 'html' / 'index.html'}")


if __name__ == "__main__":
    main()
