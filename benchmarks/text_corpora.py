"""Make the corpora of the experiments on text, from packages that anyone can download.

    python -m benchmarks.text_corpora recipe NAME
    python -m benchmarks.text_corpora make NAME PACKAGES FOLDER

`recipe` prints the commands that download the packages. `make` reads them from the folder PACKAGES
and writes FOLDER/NAME, one file per document; FOLDER/NAME.tar.xz, which has the corpus and its
tokenizer in the format of a study; and one line of results/corpora.csv. The corpora are `code`
(Python modules) and `english` (RFCs, without the lines that separate pages). The hash of a corpus
depends on its documents only, so equal hashes mean equal corpora. We do not redistribute them.
"""

import gzip
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

import emergo as em

VOCABULARY = 4096
LENGTH = 256
TABLE = Path(__file__).parents[1] / "results" / "corpora.csv"
Documents = Iterator[str]


class Corpus(NamedTuple):
    """A corpus: the command that downloads its packages, their names, and how they are read."""

    command: str
    packages: tuple[str, ...]
    read: Callable[[Path], Documents]


def modules(path: Path) -> Documents:
    """Yield the Python modules of a wheel."""
    with zipfile.ZipFile(path) as wheel:
        for name in sorted(wheel.namelist()):
            if name.endswith(".py"):
                yield from decoded(wheel.read(name))


def rfcs(path: Path) -> Documents:
    """Yield the RFCs of a Debian package, without headers and footers of pages."""
    archive = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        for member in sorted(files.getmembers(), key=lambda member: member.name):
            if not re.search(r"rfc\d+\.txt(\.gz)?$", member.name) or not member.isfile():
                continue
            file = files.extractfile(member)
            content = b"" if file is None else file.read()
            if member.name.endswith(".gz"):
                content = gzip.decompress(content)
            yield from (without_pages(text) for text in decoded(content))


def decoded(content: bytes) -> Documents:
    """Yield the text if it is in UTF-8 and not empty."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return
    if text.strip() and "\0" not in text:
        yield text


# A footer with the number of a page, the page break, and the header of the next page.
_PAGE = re.compile(r"\n+[^\n]*\[Page \d+\][ \t]*\n(?:\s*\f\n?[^\n]*\n)?")


def without_pages(text: str) -> str:
    """Remove headers and footers of pages, and repeated empty lines."""
    text = _PAGE.sub("\n", text.replace("\r\n", "\n")).replace("\f", "")
    return re.sub(r"\n[ \t]*\n(?:[ \t]*\n)+", "\n\n", text).strip() + "\n"


PIP = "pip download --no-deps --dest PACKAGES"
APT = "cd PACKAGES; apt-get download"
CORPORA: Mapping[str, Corpus] = {
    "code": Corpus(
        PIP,
        (
            "ansible==12.3.0",
            "homeassistant==2024.3.3",
            "sympy==1.14.0",
            "transformers==5.23.0",
        ),
        modules,
    ),
    "english": Corpus(
        APT,
        tuple(f"doc-rfc-{part}=20230121-1" for part in ("fyi-bcp", "std", "std-proposed")),
        rfcs,
    ),
}


def package_file(folder: Path, package: str) -> Path:
    """Return the file of a package with a version."""
    name, version = re.split("=+", package)
    found = [*folder.glob(f"{name}-{version}-*.whl"), *folder.glob(f"{name}_{version}_*.deb")]
    if len(found) != 1:
        sys.exit(f"{folder}: has {len(found)} files of {package}; see the command recipe")
    return found[0]


def make(name: str, packages: Path, folder: Path) -> dict[str, object]:
    """Write the documents and the archive of a corpus, and return its row of the table."""
    corpus = CORPORA[name]
    documents = folder / name
    documents.mkdir(parents=True, exist_ok=True)
    for package in corpus.packages:
        for text in corpus.read(package_file(packages, package)):
            content = text.encode()
            (documents / f"{hashlib.sha256(content).hexdigest()}.txt").write_bytes(content)
    task = em.Text(documents, length=LENGTH, vocabulary=VOCABULARY)
    data = task.data()
    path = folder / f"{name}.tar.xz"
    with tempfile.TemporaryDirectory() as place, tarfile.open(path, "w:xz", preset=9) as archive:
        task.save_data(Path(place))
        for file in sorted(Path(place).iterdir()):
            archive.add(file, file.name)
    sizes = [file.stat().st_size for file in documents.iterdir()]
    return {
        "name": name,
        "documents": len(sizes),
        "bytes": sum(sizes),
        "training_tokens": len(data["training"]),
        "validation_tokens": len(data["validation"]),
        "archive_bytes": path.stat().st_size,
        "source": task.source,
        "tokenizer": task.tokenizer,
        "packages": " ".join(corpus.packages),
    }


def main(words: list[str]) -> None:
    command, name = (*words, "", "")[:2]
    if name not in CORPORA or (command, len(words)) not in {("recipe", 2), ("make", 4)}:
        sys.exit(__doc__)
    if command == "recipe":
        print(CORPORA[name].command, *CORPORA[name].packages)
        return
    row = make(name, Path(words[2]), Path(words[3]))
    rows = pd.read_csv(TABLE).to_dict("records") if TABLE.exists() else []
    rows = [other for other in rows if other["name"] != name] + [row]
    pd.DataFrame(rows).to_csv(TABLE, index=False)
    print(row)


if __name__ == "__main__":
    main(sys.argv[1:])
