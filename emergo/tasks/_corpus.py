"""Corpora: documents from files, from Python's standard library or from an array of tokens.

The identity of a run covers the content of its corpus, not the place where this was found. A task
holds only a name: `text:` or `tokens:`, and a hash. The documents are found by this name: in
memory, or in the folder of the study, which gets a copy so that other processes find them.

Documents are sorted by the hash of their content, and copies of a document are dropped. The first
ones in this order, at least a sixteenth of the corpus, are for validation. So neither the names nor
the order of files matter, and no document is on both sides.
"""

import dataclasses
import functools
import hashlib
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer

from ..core.errors import InputError
from ..core.files import atomic_write, half_of_memory, own_folder, regular_file

TEXT = "text:"  # the start of the name of a corpus of text
TOKENS = "tokens:"  # of a corpus that was given as tokens
_NAME = re.compile(f"({TEXT}|{TOKENS})[0-9a-f]{{32}}")
MOST_BYTES = 2**31 - 1  # positions in a corpus are 32-bit integers
VALIDATION = 16  # one part of so many is for validation
_PIECES = 256  # of a single file; a piece has at least _LEAST and at most _MOST bytes
_LEAST = 256
_MOST = 2**16
_SKIPPED = ("__pycache__",)
# Folders of the standard library that are not part of every installation.
_NOT_EVERYWHERE = ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3")
_END = "end"  # names of the arrays in a file
_CONTENT = "content"

_known: dict[str, "Corpus | Path"] = {}


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Documents without copies, sorted by the hash of their content."""

    content: Integer[np.ndarray, " size"]  # bytes of text, or int32 tokens
    end: Integer[np.ndarray, " documents"]  # the position after each document

    @functools.cached_property
    def name(self) -> str:
        """Return `text:` or `tokens:`, and a hash of the content."""
        is_text = self.content.dtype == np.uint8
        hashed = hashlib.sha256(self.end.astype("<i8").tobytes())
        hashed.update(self.content.astype("|u1" if is_text else "<i4").tobytes())
        return (TEXT if is_text else TOKENS) + hashed.hexdigest()[:32]

    def split(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the documents for training, and the documents for validation."""
        documents = np.split(self.content, self.end[:-1])
        reached = int(np.searchsorted(self.end, len(self.content) / VALIDATION))
        first = min(reached + 1, len(documents) - 1)
        return documents[first:], documents[:first]


def corpus_name(source: Any) -> str:
    """Return the name of a corpus, and remember the corpus by this name.

    **Arguments:**

    - `source`: None for Python's standard library; the path of a text file or of a folder of text
      files, both in UTF-8; an array of tokens; or the name of a corpus.
    """
    if isinstance(source, str) and _NAME.fullmatch(source):
        return source
    if source is None:
        return _standard_library()
    if isinstance(source, str | Path):
        corpus = _from_path(_expanded(Path(source)))
    else:
        corpus = _from_tokens(source)
    _known[corpus.name] = corpus
    return corpus.name


def find_corpus(name: str) -> Corpus:
    """Return a corpus by its name."""
    found = _known.get(name)
    if found is None:
        raise InputError(
            f"Text.source: the corpus {name} is not known in this process; give its file or "
            f"folder, or the folder of a study that trained on it"
        )
    if isinstance(found, Path):
        found = _known[name] = _read(found, name)
    return found


def is_known(name: str) -> bool:
    """Return True if the corpus is in memory or in a folder."""
    return name in _known


def is_loaded(name: str) -> bool:
    """Return True if the corpus is in memory."""
    return isinstance(_known.get(name), Corpus)


def save_corpus(name: str, folder: Path) -> None:
    """Write a corpus into a folder, for other processes and later calls."""
    from safetensors.numpy import save

    path = folder / f"{name.replace(':', '-')}.safetensors"
    if is_known(name) and not path.exists():
        corpus = find_corpus(name)
        own_folder(folder)
        atomic_write(path, save({_CONTENT: corpus.content, _END: corpus.end}))


def find_corpora(folder: Path) -> None:
    """Make the corpora in a folder known to this process by their names."""
    for path in folder.glob("*.safetensors"):
        _known.setdefault(path.stem.replace("-", ":"), path)


def _read(path: Path, name: str) -> Corpus:
    from safetensors import SafetensorError, safe_open

    try:
        regular_file(path, half_of_memory())
        with safe_open(path, "numpy") as file:
            content = file.get_tensor(_CONTENT)
            end = file.get_tensor(_END)
        _check_form(content, end)
        corpus = Corpus(content, end)
        if corpus.name != name:
            raise ValueError("it was damaged or changed")
    except (OSError, ValueError, AttributeError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read as a corpus ({error})") from None
    return corpus


def _check_form(content: np.ndarray, end: np.ndarray) -> None:
    """Raise `ValueError` unless the arrays of a file are bytes or tokens of several documents."""
    if content.dtype not in (np.uint8, np.int32) or end.dtype != np.int64:
        raise ValueError("it holds numbers of other types")
    if content.ndim != 1 or end.ndim != 1 or len(end) < 2:
        raise ValueError("it does not hold several documents")
    if end[0] < 1 or (np.diff(end) < 1).any() or end[-1] != len(content) or content.min() < 0:
        raise ValueError("its documents are not one after another")


# Sources.


@functools.cache
def _standard_library() -> str:
    """Remember the source code of the standard library of this interpreter."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = []
    for path in _files(root, _NOT_EVERYWHERE):
        if path.suffix == ".py":
            try:
                documents.append(_decoded(path))
            except InputError:  # some modules that test encodings are not in UTF-8
                continue
    if len(documents) < 2:
        raise InputError(
            f"Text.source: {root} has no source code of Python's standard library; give a text "
            f"file or a folder"
        )
    corpus = _assembled(documents)
    _known[corpus.name] = corpus
    return corpus.name


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        raise InputError(f"Text.source {path}: there is no user {path.parts[0][1:]}") from None


def _from_path(path: Path) -> Corpus:
    where = f"Text.source {path}"
    if path.is_dir():
        try:
            files = list(_files(path))
        except OSError as error:
            raise InputError(f"{where}: cannot be read ({error.strerror})") from None
        if not files:
            raise InputError(f"{where}: the folder has no files")
        if sum(file.stat().st_size for file in files) > MOST_BYTES:
            raise InputError(f"{where}: has over {MOST_BYTES:,} bytes, the most of a corpus")
        documents = [text for file in files if (text := _decoded(file))]
    else:
        documents = [_decoded(path)]
    if len(documents) == 1:
        documents = list(_pieces(documents[0]))
    if not documents:
        raise InputError(f"{where}: is empty")
    if len({*documents}) < 2:
        raise InputError(
            f"{where}: is too small: training and validation need at least two different "
            f"documents, or one of {2 * _LEAST} bytes"
        )
    return _assembled(documents)


def _files(root: Path, skipped: Iterable[str] = ()) -> Iterator[Path]:
    """Yield the files below a folder, without hidden ones."""
    for path in sorted(root.iterdir()):
        if path.name.startswith(".") or path.name in (*_SKIPPED, *skipped):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path, skipped)
        elif path.is_file():
            yield path


def _decoded(path: Path) -> bytes:
    """Read a text file, and check that it is text in UTF-8."""
    where = f"Text.source {path}"
    try:
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            raise InputError(f"{where}: has over {MOST_BYTES:,} bytes, the most of a corpus")
        regular_file(path.resolve())
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise InputError(f"{where}: is neither a file nor a folder") from None
    if b"\0" in text:
        raise InputError(f"{where}: is binary (it has a zero byte); a corpus has only text files")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: is not in UTF-8 (byte {error.start:,} is invalid); convert it first, e.g. "
            f"with iconv"
        ) from None
    return text


def _pieces(text: bytes) -> Iterator[bytes]:
    """Divide a single file into documents of similar sizes.

    A document ends after a line if that is near, else after a word, else after a character.
    """
    size = min(max(len(text) // _PIECES, _LEAST), _MOST)
    begin = 0
    while begin < len(text):
        end = begin + size
        window = text[end : end + size]
        for pattern in (rb"\n", rb"\s", rb"(?=[\x00-\x7f\xc0-\xff])"):
            found = re.search(pattern, window)
            if found:
                end += found.end()
                break
        if len(text) - end < size // 2:  # do not leave a short rest
            end = len(text)
        yield text[begin:end]
        begin = end


def _from_tokens(tokens: Any) -> Corpus:
    try:
        array = np.asarray(tokens)
    except ValueError:  # nested lists of different lengths
        array = np.zeros(0)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"Text.source must be None, the path of a text file or folder, or a one-dimensional "
            f"array of whole numbers; got a {type(tokens).__name__} of shape {array.shape}"
        )
    if len(array) < 2 * _LEAST or len(array) > MOST_BYTES:
        raise InputError(
            f"Text.source: an array must have {2 * _LEAST} to {MOST_BYTES:,} tokens, got "
            f"{len(array):,}"
        )
    if array.min() < 0 or array.max() >= MOST_BYTES:
        raise InputError(
            f"Text.source: tokens must be from 0 to {MOST_BYTES - 1:,}, got {array.min():,} to "
            f"{array.max():,}"
        )
    size = min(max(len(array) // _PIECES, _LEAST), _MOST)
    whole = array.astype("<i4")
    cuts = range(size, len(whole) - size // 2, size)
    documents = [piece.tobytes() for piece in np.split(whole, list(cuts))]
    if len({*documents}) < 2:
        raise InputError("Text.source: all parts of the array are the same")
    return _assembled(documents, np.dtype("<i4"))


def _assembled(documents: Iterable[bytes], dtype: Any = np.uint8) -> Corpus:
    """Sort documents by the hash of their content, without copies."""
    by_hash = {hashlib.sha256(document).digest(): document for document in documents}
    ordered = [document for _, document in sorted(by_hash.items())]
    size = np.dtype(dtype).itemsize
    end = np.cumsum([len(document) // size for document in ordered], dtype=np.int64)
    return Corpus(np.frombuffer(b"".join(ordered), dtype), end)
