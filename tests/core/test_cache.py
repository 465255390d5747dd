"""Programs that are kept: whole or not at all, however many processes write, and never a reason to
stop."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from emergo.core import cache as _cache
from emergo.core.cache import ProgramFiles, cache_state, prune

PROGRAM = b"a program" * 100


@pytest.fixture
def quiet_home(monkeypatch, tmp_path):
    """As for a user who has set nothing, with a home folder of their own."""
    monkeypatch.setattr(_cache, "_given_to_jax", lambda: None)
    monkeypatch.setattr(_cache, "_loader_complains", lambda: False)
    for name in ("EMERGO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    jax.config.update("jax_enable_compilation_cache", True)
    yield tmp_path
    jax.config.update("jax_enable_compilation_cache", False)


def test_what_is_put_is_got(tmp_path):
    files = ProgramFiles(tmp_path)
    assert files.get("a") is None
    files.put("a", PROGRAM)
    assert files.get("a") == PROGRAM
    assert ProgramFiles(tmp_path).get("a") == PROGRAM
    assert files.get("b") is None


DAMAGES = {"empty": slice(0), "a part of the checksum": slice(20), "truncated": slice(-1)}


@pytest.mark.parametrize("damage", [*DAMAGES, "other bytes", "more bytes"])
def test_a_damaged_file_is_gone_and_can_be_written_again(tmp_path, damage):
    files = ProgramFiles(tmp_path)
    files.put("a", PROGRAM)
    [path] = tmp_path.iterdir()
    content = path.read_bytes()
    others = {"other bytes": content[:-1] + b"?", "more bytes": content + b"?"}
    path.write_bytes(content[DAMAGES[damage]] if damage in DAMAGES else others[damage])
    assert files.get("a") is None
    assert not path.exists()
    files.put("a", PROGRAM)
    assert files.get("a") == PROGRAM


def test_a_link_is_not_followed(tmp_path):
    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    inside.mkdir()
    files = ProgramFiles(inside)
    files.put("a", PROGRAM)
    [path] = inside.iterdir()
    path.rename(outside)
    path.symlink_to(outside)
    assert files.get("a") is None


def test_a_machine_with_another_processor_has_other_files(tmp_path, monkeypatch):
    ProgramFiles(tmp_path).put("a", PROGRAM)
    monkeypatch.setattr(_cache, "_processor", lambda: ("x86_64", "flags: fpu"))
    assert ProgramFiles(tmp_path).get("a") is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_so_has_a_process_with_other_cores(tmp_path):
    """XLA cuts loops for as many as there are."""
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        pytest.skip("there is one core")
    ProgramFiles(tmp_path).put("a", PROGRAM)
    _cache._processor.cache_clear()
    try:
        os.sched_setaffinity(0, {min(cores)})
        assert ProgramFiles(tmp_path).get("a") is None
    finally:
        os.sched_setaffinity(0, cores)
        _cache._processor.cache_clear()
    assert ProgramFiles(tmp_path).get("a") == PROGRAM


def test_nothing_is_said_where_the_folder_is_gone_or_no_folder(tmp_path):
    gone = ProgramFiles(tmp_path / "gone")
    gone.put("a", PROGRAM)
    assert gone.get("a") is None
    (tmp_path / "file").write_text("")
    ProgramFiles(tmp_path / "file").put("a", PROGRAM)
    assert (tmp_path / "file").read_text() == ""


def test_a_full_disk_is_no_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(path, content):
        with open(path, "wb") as file:
            file.write(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    ProgramFiles(tmp_path).put("a", PROGRAM)
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    files = ProgramFiles(tmp_path, most_bytes=10 * 1032)
    for n in range(10):
        files.put(f"{n}", bytes(1000))
        os.utime(files._file(f"{n}"), (n, n))
    assert files.get("0") is not None  # which is its last use
    files.put("10", bytes(1000))
    kept = [n for n in range(11) if files._file(f"{n}").exists()]
    assert kept == [0, 4, 5, 6, 7, 8, 9, 10]


def test_what_a_stopped_process_left_goes_and_what_is_being_written_stays(tmp_path):
    for name in (".old", ".new"):
        (tmp_path / name).write_bytes(b"half")
    hours_ago = time.time() - 2 * 3600
    os.utime(tmp_path / ".old", (hours_ago, hours_ago))
    prune(tmp_path, 1000)
    assert [file.name for file in tmp_path.iterdir()] == [".new"]


WRITER = """
import sys
from pathlib import Path
from emergo.core.cache import ProgramFiles

files = ProgramFiles(Path(sys.argv[1]), most_bytes=200_000)  # so small that every process also removes files
for _ in range(10):
    for k in range(20):
        value = bytes([k]) * 20_000
        assert files.get(f"{k}") in (None, value)
        files.put(f"{k}", value)
"""


def test_many_processes_at_once_see_whole_programs_or_none(tmp_path):
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_by_default_in_the_cache_folder_of_the_user(quiet_home, monkeypatch):
    assert cache_state() == (quiet_home / ".cache/emergo/programs", "", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(quiet_home / "other"))
    assert cache_state().folder == quiet_home / "other/emergo/programs"
    monkeypatch.setenv("EMERGO_CACHE", str(quiet_home / "third"))
    assert cache_state().folder == quiet_home / "third"
    assert list(quiet_home.iterdir()) == []


@pytest.mark.parametrize("word", ["", "0", "off", "OFF", "false", "no", "~nobody-of-this-name/x"])
def test_off_by_one_variable(quiet_home, monkeypatch, word):
    monkeypatch.setenv("EMERGO_CACHE", word)
    assert cache_state().folder is None
    assert "EMERGO_CACHE" in cache_state().off


def test_a_folder_that_jax_was_given_is_left_to_jax(quiet_home, monkeypatch):
    monkeypatch.setattr(_cache, "_given_to_jax", lambda: str(quiet_home))
    assert cache_state() == (quiet_home, "", True)


def _denied(path):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def test_folders_that_will_not_do(quiet_home, monkeypatch):
    folder = quiet_home / "programs"
    monkeypatch.setenv("EMERGO_CACHE", str(folder))
    folder.mkdir(mode=0o700)
    assert cache_state().off == ""
    folder.chmod(0o770)
    assert "others may write" in cache_state().off
    folder.rmdir()
    folder.write_text("")
    assert "is not a folder" in cache_state().off
    folder.unlink()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written" in cache_state().off
    monkeypatch.undo()
    assert "File name too long" in _cache._objection(quiet_home / ("long" * 1000))
    monkeypatch.setattr(Path, "exists", _denied)  # a home folder that may not be entered
    assert "Permission denied" in _cache._objection(folder)
    monkeypatch.undo()
    monkeypatch.setattr(_cache, "LEAST_FREE", 2**80)
    assert "free" in _cache._objection(folder)


SCRIPT = """
import collections, json, sys
import emergo as em
from emergo import theory
import jax

events = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: events.update([event.rpartition("/")[2]]))
task, model = em.SingleLocation(length=4, dim=2), em.ToyAttention()
config = em.Config(task, model, em.Optimizer("sgd", learning_rate=0.5), steps=50, batch=8, n_test=16, precision="fp32")
[result] = em.train([em.Run(config, 0)])
with theory.float64():
    slope = jax.jit(theory.gradient)(jax.numpy.array([0.1, 0.2]), theory.cells(64, 16))
numbers = [float(x) for x in [*result.curves["loss"], *slope.ravel()]]
print(json.dumps([numbers, events["cache_hits"], events["cache_misses"]]))
"""


@pytest.mark.slow  # three processes that train
def test_a_second_process_compiles_nothing_and_damage_is_mended_without_a_word(tmp_path):
    given = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "TF_"))
    }
    environment = given | {"EMERGO_CACHE": str(tmp_path / "programs")}

    def run():
        command = [sys.executable, "-W", "error", "-c", SCRIPT]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    numbers, hits, compiled = run()
    assert compiled > hits  # which are of programs that it asked for twice
    files = sorted((tmp_path / "programs").iterdir())
    assert (tmp_path / "programs").stat().st_mode & 0o777 == 0o700
    assert len(files) == compiled
    for n, file in enumerate(files[::2]):
        content = file.read_bytes()
        file.write_bytes([content[: len(content) // 2], content[:-8] + bytes(8), b""][n % 3])
    assert run() == [numbers, hits + compiled - len(files[::2]), len(files[::2])]
    assert run() == [numbers, hits + compiled, 0]
