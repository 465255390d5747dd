"""Tokens of a corpus: its bytes, byte-level BPE, or the tokens that were given.

A tokenizer is trained on the training documents only. Its name has a hash of its vocabulary, which
is part of the identity of a run. Tokenizers and encoded corpora are kept next to the compiled
programs, so that a later process does not repeat the work.
"""

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer

from ..core.cache import ProgramFiles, kept_files
from ..core.errors import InputError
from ..core.files import atomic_write, own_folder, read_regular
from ._corpus import TOKENS, Corpus, find_corpus, is_known

BYTES = 256
SEPARATOR = 0  # the token between documents: the byte 0, or the first token of BPE
_MARK = "<|end|>"  # the text of the separator in BPE
_MOST_TOKENIZER = 2**26  # bytes of a file
_LEAST_BPE = BYTES + 2  # all bytes, the separator and a pair
Tokens = Integer[np.ndarray, "_"]
_files: dict[str, Path] = {}


def tokenizer_name(source: str, vocabulary: int, given: str = "") -> str:
    """Return the name of the tokenizer of a corpus, such as `bpe-1024-0123456789abcdef`.

    It is empty for bytes and for given tokens. A tokenizer is trained if `given` is not the name of
    one with this vocabulary.
    """
    if vocabulary == BYTES or source.startswith(TOKENS):
        return ""
    if vocabulary < _LEAST_BPE:
        raise InputError(
            f"Text.vocabulary must be {BYTES}, for bytes, or at least {_LEAST_BPE}, got "
            f"{vocabulary}"
        )
    if given.startswith(_prefix(vocabulary)):
        return given
    return _prefix(vocabulary) + _hash(_trained(source, vocabulary))


@functools.lru_cache(maxsize=4)
def streams(source: str, vocabulary: int, tokenizer: str) -> tuple[Tokens, Tokens]:
    """Return all tokens for training, and all tokens for validation.

    Documents of text are followed by the separator. The parts of given tokens have none.
    """
    corpus = find_corpus(source)
    if source.startswith(TOKENS):
        highest = int(corpus.content.max())
        if highest >= vocabulary:
            raise InputError(
                f"Text.vocabulary must be above the largest token of the source, {highest}, got "
                f"{vocabulary}"
            )
        training, validation = map(np.concatenate, corpus.split())
        return _small(training, vocabulary), _small(validation, vocabulary)
    if not tokenizer:
        training, validation = map(_joined, corpus.split())
        return training, validation
    return _encoded(corpus, vocabulary, tokenizer)


def decode(tokens: Sequence[int], source: str, tokenizer: str) -> str:
    """Return the text of some tokens; invalid UTF-8 becomes replacement characters."""
    if tokenizer:
        made = _load(source, tokenizer)
        return made.decode([t for t in tokens if t != SEPARATOR], skip_special_tokens=True)
    return bytes(t for t in tokens if t != SEPARATOR).decode(errors="replace")


def encode(text: str, source: str, tokenizer: str) -> list[int]:
    """Return the tokens of a text."""
    if tokenizer:
        return list(_load(source, tokenizer).encode(text).ids)
    return list(text.encode())


def save_tokenizer(source: str, tokenizer: str, folder: Path) -> None:
    """Write a tokenizer into a folder, for other processes and later calls."""
    path = folder / f"{tokenizer}.json"
    if tokenizer and not path.exists() and (tokenizer in _files or is_known(source)):
        own_folder(folder)
        atomic_write(path, _load(source, tokenizer).to_str())


def find_tokenizers(folder: Path) -> None:
    """Make the tokenizers in a folder known to this process by their names."""
    for path in folder.glob("bpe-*.json"):
        _files.setdefault(path.stem, path)


def _prefix(vocabulary: int) -> str:
    return f"bpe-{vocabulary}-"


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise InputError(
            "Text.vocabulary other than 256 needs the package tokenizers: pip install "
            "'emergo[text]'; or use bytes"
        ) from None
    return tokenizers


def _hash(text: str) -> str:
    """Hash the vocabulary and the merges of a tokenizer."""
    model = json.loads(text)["model"]
    merges = [list(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
    content = json.dumps([sorted(model["vocab"].items()), merges])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=16)
def _trained(source: str, vocabulary: int) -> str:
    """Train byte-level BPE on the training documents of a corpus; return it as JSON."""
    library = _library()
    kept = _kept()
    key = f"bpe-{library.__version__}-{vocabulary}-{source}"
    found = None if kept is None else kept.get(key)
    if found is not None:
        return found.decode()
    tokenizer = _with_model(library.models.BPE())
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_MARK],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(find_corpus(source).split()[0]), trainer)
    text = tokenizer.to_str()
    if kept is not None:
        kept.put(key, text.encode())
    return text


def _with_model(model: Any) -> Any:
    """Return a byte-level tokenizer."""
    library = _library()
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def _built(text: str) -> Any:
    """Return the tokenizer with the vocabulary and the merges of a JSON text.

    The name of a tokenizer is a hash of these two, so nothing else is taken from the text. A file
    from another person may ask for other steps, such as lower case.
    """
    model = json.loads(text)["model"]
    merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
    tokenizer = _with_model(_library().models.BPE(vocab=model["vocab"], merges=merges))
    tokenizer.add_special_tokens([_MARK])
    return tokenizer


@functools.lru_cache(maxsize=16)
def _load(source: str, name: str) -> Any:
    """Return a tokenizer by its name: from the folder of a study, or trained on its corpus."""
    path = _files.get(name)
    _, vocabulary, digest = name.split("-")
    if path is None:
        text = _trained(source, int(vocabulary))
    else:
        try:
            text = read_regular(path, _MOST_TOKENIZER).decode()
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as a tokenizer ({error})") from None
    try:
        tokenizer = _built(text)
        actual = _hash(text)
    except InputError:
        raise
    except Exception as error:  # the library raises plain exceptions
        raise InputError(f"{path}: cannot be read as a tokenizer ({error})") from None
    if actual != digest:
        raise InputError(
            f"{path or 'this version of tokenizers'}: gives the tokenizer bpe-{vocabulary}-"
            f"{actual}, and the run needs {name}"
        )
    return tokenizer


def _encoded(corpus: Corpus, vocabulary: int, name: str) -> tuple[Tokens, Tokens]:
    """Encode both parts of a corpus, or take them from the folder of compiled programs."""
    kept = _kept()
    dtype = _dtype(vocabulary)
    parts = []
    for part, documents in zip(("training", "validation"), corpus.split(), strict=True):
        key = f"{part}-{name}-{corpus.name}"
        found = None if kept is None else kept.get(key)
        if found is None:
            encodings = _load(corpus.name, name).encode_batch_fast(_texts(documents))
            ids = [np.array([*encoding.ids, SEPARATOR], dtype) for encoding in encodings]
            found = np.concatenate(ids).tobytes()
            if kept is not None:
                kept.put(key, found)
        parts.append(np.frombuffer(found, dtype))
    training, validation = parts
    return training, validation


def _kept() -> ProgramFiles | None:
    return kept_files("tokens")


def _texts(documents: Sequence[np.ndarray]) -> list[str]:
    return [document.tobytes().decode() for document in documents]


def _joined(documents: Sequence[np.ndarray]) -> Tokens:
    """Join documents of bytes, each with a separator after it."""
    separator = np.zeros(1, np.uint8)
    return np.concatenate([part for document in documents for part in (document, separator)])


def _dtype(vocabulary: int) -> Any:
    if vocabulary <= 2**8:
        return np.uint8
    return np.uint16 if vocabulary <= 2**16 else np.int32


def _small(tokens: np.ndarray, vocabulary: int) -> Tokens:
    return tokens.astype(_dtype(vocabulary))
