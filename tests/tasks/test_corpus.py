"""Corpora: where they come from, how they are divided and named, and what is refused."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from emergo import InputError
from emergo.core.json import digest
from emergo.tasks import Text, find_data
from emergo.tasks._corpus import find_corpus
from tests.texts import TEXT, sentences

TOKENS = np.random.default_rng(0).integers(0, 700, 5000)


def words(stream):
    """Return the documents of a stream of bytes."""
    return bytes(stream.tolist()).split(b"\0")[:-1]


@pytest.fixture
def folder(tmp_path):
    """Twenty documents, one of them twice, in a folder with files that are not part of it."""
    for i in range(20):
        (tmp_path / f"{i:02}.txt").write_text(sentences(12, i))
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "again.txt").write_text(sentences(12, 3))
    (tmp_path / ".hidden").write_bytes(b"\0")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").write_bytes(b"\0")
    (tmp_path / "empty.txt").write_bytes(b"")
    return tmp_path


def test_documents_are_for_training_or_for_validation(folder):
    data = Text(folder, length=32).data()
    parts = [words(data[name]) for name in ("training", "validation")]
    assert not {*parts[0]} & {*parts[1]}
    assert sorted([*parts[0], *parts[1]]) == sorted(sentences(12, i).encode() for i in range(20))
    share = len(data["validation"]) / (len(data["training"]) + len(data["validation"]))
    assert 1 / 20 < share < 1 / 8


def test_a_corpus_is_its_content_and_not_its_place(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    for i in range(20):
        (other / f"{19 - i}.md").write_text(sentences(12, i))
    assert Text(folder, length=32) == Text(str(other), length=32)
    assert hash(Text(folder, length=32)) == hash(Text(other, length=32))
    assert str(folder) not in repr(Text(folder, length=32))
    (other / "0.md").write_text(sentences(12, 99))
    assert Text(folder, length=32) != Text(other, length=32)


def test_a_single_file_is_divided_without_loss(tmp_path):
    no_lines = TEXT.replace("\n", " ")
    for name, text in {"lines": TEXT, "words": no_lines, "one": "ä€😀x" * 900}.items():
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        data = Text(path, length=32).data()
        documents = [*words(data["training"]), *words(data["validation"])]
        if name == "one":
            assert all(document.decode() for document in documents)  # no character is cut
        else:
            assert sorted(b"".join(documents)) == sorted(text.encode())
            assert sum(not document[-1:].isspace() for document in documents) <= 1


def test_tokens_of_an_array_are_kept():
    task = Text(TOKENS, length=32, vocabulary=700)
    data = task.data()
    assert np.array_equal(np.sort([*data["training"], *data["validation"]]), np.sort(TOKENS))
    assert data["training"].dtype == np.uint16
    assert task == Text(TOKENS.tolist(), length=32, vocabulary=700)
    with pytest.raises(InputError, match="given as tokens"):
        task.decode([1])


def test_the_default_corpus_is_the_standard_library():
    task = Text(length=64)
    assert task == Text(length=64)
    assert len(task.data()["training"]) > 5e6
    assert "def " in task.decode(task.data()["validation"][:50_000].tolist())


def test_byte_pairs_are_trained_on_the_training_documents_and_read_back(folder):
    pytest.importorskip("tokenizers")
    task = Text(folder, length=32, vocabulary=330)
    data = task.data()
    assert task.decode(task.encode("Ada counts über 3")) == "Ada counts über 3"
    assert 0 not in task.encode("<|end|>")  # only the ends of documents are ends
    assert task.decode(task.encode("<|end|>")) == "<|end|>"
    assert data["training"].max() < 330
    assert len(data["training"]) < len(Text(folder, length=32).data()["training"]) / 2
    assert task.tokenizer.startswith("bpe-330-")
    larger = task.replace(vocabulary=370)
    assert larger.tokenizer.startswith("bpe-370-")
    assert larger.replace(vocabulary=330) == task
    with pytest.raises(InputError, match=r"is 9,000, and the corpus is too small for more than \d"):
        task.replace(vocabulary=9000)
    assert task.replace(vocabulary=256).tokenizer == ""


def test_another_corpus_has_its_own_tokenizer(folder, tmp_path_factory):
    pytest.importorskip("tokenizers")
    other = tmp_path_factory.mktemp("other") / "other.txt"
    other.write_text("She sells sea shells. " * 9 + TEXT[::-1])
    task, expected = (Text(place, length=32, vocabulary=300) for place in (folder, other))
    assert task.tokenizer != expected.tokenizer
    assert task.replace(source=other) == expected
    assert task.replace(source=other).replace(source=folder) == task
    again = {"length": 32, "vocabulary": 300, "tokenizer": task.tokenizer}
    assert Text(task.source, **again) == task
    assert Text("text:" + 32 * "0", **again).tokenizer == task.tokenizer  # a recorded run


OTHER = """
import hashlib, pathlib, sys
import emergo as em
from emergo.tasks import find_data
folder, source, name = sys.argv[1:]
task = em.Text(source, length=32, vocabulary=300, tokenizer=name)
assert repr(task)
try:
    task.data()
except em.InputError as error:
    assert "is not known in this process" in str(error), error
find_data(pathlib.Path(folder))
print(hashlib.sha256(task.data()["training"].tobytes()).hexdigest(), task.decode([5, 90]))
"""


def test_another_process_finds_corpora_in_the_folder_of_a_study(folder, tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    task = Text(folder, length=32, vocabulary=300)
    kept = tmp_path / "kept"
    task.save_data(kept)
    monkeypatch.setenv("EMERGO_CACHE", "off")
    command = [sys.executable, "-c", OTHER, str(kept), task.source, task.tokenizer]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    own = hashlib.sha256(task.data()["training"].tobytes()).hexdigest()
    assert done.stdout.strip("\n") == f"{own} {task.decode([5, 90])}"
    for path in kept.iterdir():
        content = path.read_bytes()
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    failed = subprocess.run(command, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "cannot be read as a corpus (it was damaged or changed)" in failed.stderr


@pytest.mark.parametrize(
    ("content", "end"),
    [
        (np.zeros(9, np.uint8), [9]),
        (np.zeros(9, np.uint8), [4, 8]),
        (np.zeros(9, np.uint8), [8, 4, 9]),
        (np.zeros((3, 3), np.uint8), [1, 3]),
        (np.full(9, -1, np.int32), [4, 9]),
        (np.zeros(9, np.float32), [4, 9]),
    ],
)
def test_a_corpus_without_proper_documents_is_refused(content, end, tmp_path):
    """A forged name could be the hash of its content."""
    name = f"text:{digest(end)}{digest(content.tolist())}"
    path = tmp_path / f"{name.replace(':', '-')}.safetensors"
    save_file({"content": content, "end": np.array(end)}, path)
    find_data(tmp_path)
    with pytest.raises(InputError, match=r"as a corpus \(.*(types|several|one after another)"):
        find_corpus(name)


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"short", "is too small: training and validation need at least two"),
        (b"a\0b" * 900, "is binary"),
        ("größer ".encode("latin-1") * 900, r"is not in UTF-8 \(byte 2 is invalid\)"),
        (b"all work and no play\n" * 910, "is too small"),
    ],
    ids=["empty", "short", "binary", "latin-1", "repetitive"],
)
def test_invalid_files_give_one_line(content, message, tmp_path):
    path = write(tmp_path / "corpus.txt", content)
    with pytest.raises(InputError, match=f"Text.source {path}: {message}") as caught:
        Text(path, length=16)
    assert "\n" not in str(caught.value)


def test_a_folder_of_one_file_is_divided_like_the_file(tmp_path):
    path = write(tmp_path / "one.txt", TEXT.encode())
    assert Text(tmp_path, length=16) == Text(path, length=16)


def test_most_of_a_corpus_must_not_be_for_validation(tmp_path):
    """The first document in the order of hashes is for validation, however long it is."""
    write(tmp_path / "short.txt", b"A short text about nothing.")
    hashes = {i: hashlib.sha256(f"{i} {TEXT}".encode()).digest() for i in range(99)}
    first = min(hashes, key=hashes.__getitem__)
    write(tmp_path / "long.txt", f"{first} {TEXT}".encode())
    with pytest.raises(InputError, match=r"one document is most of the corpus, .* 28 are for"):
        Text(tmp_path, length=16)


def test_an_invalid_file_of_a_folder_is_named(folder):
    write(folder / "picture.png", b"\x89PNG\0")
    with pytest.raises(InputError, match=r"picture\.png: is binary"):
        Text(folder, length=16)


def test_invalid_places_give_one_line(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read \(No such file or directory\)"):
        Text(tmp_path / "missing.txt", length=16)
    with pytest.raises(InputError, match="there is no user nobody-of-this-name"):
        Text("~nobody-of-this-name/text.txt", length=16)
    with pytest.raises(InputError, match="the folder has no files"):
        Text(tmp_path, length=16)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is neither a file nor a folder"):
        Text(tmp_path / "pipe", length=16)
    if os.getuid():
        write(tmp_path / "locked.txt", b"a").chmod(0)
        with pytest.raises(InputError, match=r"cannot be read \(Permission denied\)"):
            Text(tmp_path / "locked.txt", length=16)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (TOKENS.reshape(10, -1), "one-dimensional array of whole numbers; got a ndarray of shape"),
        (TOKENS / 2, "one-dimensional array of whole numbers"),
        (5, "one-dimensional array of whole numbers; got a int"),
        (TOKENS - 1, "tokens must be from 0 to .*, got -1 to 698"),
        (TOKENS[:100], "an array must have 512 to"),
        (np.zeros(5120, int), "all parts of the array are the same"),
        (TOKENS + 1, "above the largest token of the source, 700, got 700"),
    ],
)
def test_invalid_arrays_give_one_line(tokens, message):
    with pytest.raises(InputError, match=message):
        Text(tokens, length=16, vocabulary=700)


def test_a_corpus_must_hold_a_sequence(tmp_path):
    path = write(tmp_path / "small.txt", TEXT.encode())
    with pytest.raises(InputError, match=r"its validation documents have [\d,]+ tokens, and one"):
        Text(path, length=2000)
    with pytest.raises(InputError, match=r"Text\.vocabulary must be 256, for bytes, or at least"):
        Text(path, length=16, vocabulary=257)
