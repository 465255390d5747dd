"""Tokens of a corpus: its bytes, byte-level BPE, or the tokens that were given.

A tokenizer is trained on the training documents only. Its name has a hash of its vocabulary, which
is part of the identity of a run. Tokenizers and encoded corpora are kept next to the compiled
programs, so that a later process does not repeat the work.
"""

import functools
import hashlib
import json
import re
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
_sources: dict[str, str] = {}  # the corpus of each tokenizer by their names


def tokenizer_name(source: str, vocabulary: int, given: str = "") -> str:
    """Return the name of the tokenizer of a corpus, such as `bpe-1024-0123456789abcdef`.

    It is empty for bytes and for given tokens. A tokenizer is trained if `given` is not the name of
    one with this vocabulary, or if it belongs to another corpus.
    """
    if vocabulary == BYTES or source.startswith(TOKENS):
        return ""
    if vocabulary < _LEAST_BPE:
        raise InputError(
            f"Text.vocabulary must be {BYTES}, for bytes, or at least {_LEAST_BPE}, got "
            f"{vocabulary}"
        )
    if re.fullmatch(rf"bpe-{vocabulary}-[0-9a-f]{{16}}", given) and (
        _sources.setdefault(given, source) == source or not is_known(source)
    ):
        return given
    content = _trained(source, vocabulary)
    count = len(json.loads(content)[0])
    if count < vocabulary:
        raise InputError(
            f"Text.vocabulary is {vocabulary:,}, and the corpus is too small for more than "
            f"{count:,} tokens"
        )
    name = _name(vocabulary, content)
    _sources.setdefault(name, source)
    return name


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
        return str(_load(source, tokenizer).decode([t for t in tokens if t != SEPARATOR]))
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
        atomic_write(path, _found(source, tokenizer))


def find_tokenizers(folder: Path) -> None:
    """Make the tokenizers in a folder known to this process by their names."""
    for path in folder.glob("bpe-*.json"):
        _files.setdefault(path.stem, path)


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise InputError(
            "Text.vocabulary other than 256 needs the package tokenizers: pip install "
            "'emergo[text]'; or use bytes"
        ) from None
    return tokenizers


def _name(vocabulary: int, content: str) -> str:
    return f"bpe-{vocabulary}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


@functools.lru_cache(maxsize=16)
def _trained(source: str, vocabulary: int) -> str:
    """Train byte-level BPE on the training documents of a corpus.

    **Returns:** its tokens in the order of their numbers, and its merges, as JSON. Files hold this
    rather than the format of the library, which has more parts and changes between versions.
    """
    library = _library()
    kept = _kept()
    key = f"bpe-{library.__version__}-{vocabulary}-{source}"
    found = None if kept is None else kept.get(key)
    if found is not None:
        return found.decode()
    tokenizer = _bytewise(library.models.BPE())
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_MARK],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(find_corpus(source).split()[0]), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    content = json.dumps([tokens, merges])
    if kept is not None:
        kept.put(key, content.encode())
    return content


def _bytewise(model: Any) -> Any:
    """Return a tokenizer that applies a model to the bytes of words."""
    library = _library()
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def _found(source: str, name: str) -> str:
    """Return the content of a tokenizer: from the folder of a study, or trained on its corpus."""
    path = _files.get(name)
    vocabulary = int(name.split("-")[1])
    if path is None:
        content = _trained(source, vocabulary)
    else:
        try:
            content = read_regular(path, _MOST_TOKENIZER).decode()
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as a tokenizer ({error})") from None
    if _name(vocabulary, content) != name:
        where = path or f"this version of tokenizers ({_library().__version__})"
        raise InputError(
            f"{where}: gives the tokenizer {_name(vocabulary, content)}, and the run needs {name}"
        )
    return content


@functools.lru_cache(maxsize=16)
def _load(source: str, name: str) -> Any:
    """Return a tokenizer by its name."""
    tokens, merges = json.loads(_found(source, name))
    numbers = {token: number for number, token in enumerate(tokens)}
    model = _library().models.BPE(vocab=numbers, merges=[tuple(pair) for pair in merges])
    return _bytewise(model)


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
