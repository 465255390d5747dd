"""Builds the site: `make docs`, or `python docs/_site/build.py`. Everything it writes is under
docs/_build.

The pages of docs/ are put into docs/_build/source, with the gallery (`gallery.py`) and the
reference (`api.py`) beside them; links that lead out of docs/ lead to pages of their own. Then
Sphinx runs the tutorials and makes docs/_build/html; a warning is an error.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":  # as a script, the repository is not among the places of modules
    sys.path.insert(0, str(Path(__file__).parents[2]))

from docs._site import api, gallery, tables

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BUILD = ROOT / "docs" / "_build"
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages that lie beside docs/ in the repository and at the top of the site."""
CODE = {".py": "python", ".toml": "toml", ".sh": "bash"}
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")


def sources() -> dict[Path, str]:
    """The pages that are written by hand: their places in the site, and their text with the links
    that the site has."""
    pages = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in BESIDE)]
    pins = gallery.pinned()
    return {
        place_of(page): tables.filled(page.read_text(), pins)
        for page in pages
        if "_build" not in page.parts
    }


def place_of(path: Path) -> Path:
    """Where a page, or the page of a file, is in the site."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    if path.parent == ROOT and path.suffix == ".md":
        return Path(path.name)
    return Path("source") / f"{'-'.join(path.relative_to(ROOT).parts)}.md"


def relinked(text: str, page: Path, extra: dict[Path, str]) -> str:
    """A page whose links stay within the site: those to code get a page of it, which is put into
    `extra`; those to subpackages lead to the reference; those to other folders are words."""
    origin = ROOT if page.name in BESIDE else (DOCS / page).parent
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
        if target.is_relative_to(DOCS) or target.name in BESIDE:
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

    # What stands in blocks of code is not a link.
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(parts))


def code_page(path: Path) -> str:
    name = path.relative_to(ROOT)
    return (
        f"---\norphan: true\n---\n\n# `{name}`\n\n````{CODE[path.suffix]}\n{path.read_text()}````\n"
    )


def site() -> dict[Path, str]:
    """All pages of the site."""
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
    """Writes the pages and what belongs to them; returns the folder that Sphinx reads."""
    shutil.rmtree(BUILD, ignore_errors=True)
    folder = BUILD / "source"
    for page, text in site().items():
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(text)
    shutil.copytree(DOCS / "img", folder / "img")
    return folder


def main() -> None:
    folder = stage()
    # The tutorials train for seconds: most of their time is compilation, which is quicker without
    # LLVM's optimizations.
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {
        "PATH": beside,
        "PYTHONPATH": python_path,
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    environment |= {
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    environment |= {"TTY_COMPATIBLE": "0"}  # commands of a notebook are not watched
    options = [
        "-W",
        "--keep-going",
        "-q",
        "-j",
        "2",
        "-c",
        str(DOCS / "_site"),
        "-d",
        str(BUILD / "doctrees"),
    ]
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        *options,
        str(folder),
        str(BUILD / "html"),
    ]
    if subprocess.run(command, env=environment, check=False).returncode:
        sys.exit("the site was not built without warnings")
    print(f"open {BUILD / 'html' / 'index.html'}")


if __name__ == "__main__":
    main()
