"""The cache of compiled programs: whole files or none, with any number of processes."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from emergo.core.cache import ProgramFiles, cache_state, prune

PROGRAM = b"a program" * 100


def test_programs_round_trip(tmp_path):
    files = ProgramFiles(tmp_path)
    assert files.get("a") is None
    files.put("a", PROGRAM)
    assert files.get("a") == PROGRAM
    assert ProgramFiles(tmp_path).get("a") == PROGRAM
    assert files.get("b") is None


DAMAGES = {
    "empty": lambda content: b"",
    "half a checksum": lambda content: content[:20],
    "truncated": lambda content: content[:-1],
    "other bytes": lambda content: content[:-1] + b"?",
    "more bytes": lambda content: content + b"?",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_removed_and_written_again(tmp_path, damage):
    files = ProgramFiles(tmp_path)
    files.put("a", PROGRAM)
    [path] = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert files.get("a") is None
    assert not path.exists()
    files.put("a", PROGRAM)
    assert files.get("a") == PROGRAM


def test_symlinks_are_not_followed(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    files = ProgramFiles(inside)
    files.put("a", PROGRAM)
    [path] = inside.iterdir()
    path.rename(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    assert files.get("a") is None


def test_swapped_entries_are_removed(tmp_path):
    """The checksum covers the key: another program would be executed otherwise."""
    files = ProgramFiles(tmp_path)
    for key in ("a", "b"):
        files.put(key, PROGRAM + key.encode())
    one, two = tmp_path.iterdir()
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    for key in ("a", "b"):
        assert files.get(key) is None
    assert list(tmp_path.iterdir()) == []
    files.put("a", PROGRAM)
    assert files.get("a") == PROGRAM


@pytest.fixture
def deep(tmp_path):
    """Files two folders below one that the tests change."""
    files = ProgramFiles(tmp_path / "one/two/programs")
    files.put("a", PROGRAM)
    assert files.get("a") == PROGRAM
    return files


@pytest.mark.parametrize("component", ["one", "one/two", "one/two/programs"])
def test_every_folder_on_the_path_is_checked_whenever_a_file_is_opened(tmp_path, deep, component):
    folder = tmp_path / component
    before = tree(tmp_path)
    for mode in (0o777, 0o775, 0o757):
        folder.chmod(mode)
        assert deep.get("a") is None
        deep.put("b", PROGRAM)
        assert ProgramFiles(tmp_path / "one/two/programs").get("a") is None
    folder.chmod(0o755)
    assert tree(tmp_path) == before  # nothing was written or removed
    assert deep.get("a") == PROGRAM


def test_a_sticky_folder_protects_the_folders_inside(tmp_path, deep):
    """As in /tmp, where others cannot rename them."""
    (tmp_path / "one").chmod(0o1777)
    assert deep.get("a") == PROGRAM
    (tmp_path / "one").chmod(0o700)
    (tmp_path / "one/two/programs").chmod(0o1777)
    assert deep.get("a") is None


OTHER = 54321  # a user who is neither this one nor root


@pytest.mark.parametrize("what", ["one", "one/two/programs", "link", "file"])
def test_what_belongs_to_somebody_else_is_not_used(tmp_path, deep, monkeypatch, what):
    (tmp_path / "link").symlink_to("one")
    files = ProgramFiles(tmp_path / "link/two/programs")
    assert files.get("a") == PROGRAM
    [file] = (tmp_path / "one/two/programs").iterdir()
    foreign = (file if what == "file" else tmp_path / what).lstat().st_ino

    def owned(ask):
        def asked(*arguments, **options):
            status = ask(*arguments, **options)
            if status.st_ino != foreign:
                return status
            return os.stat_result([*status[:4], OTHER, *status[5:]])

        return asked

    for name in ("stat", "fstat", "lstat"):
        monkeypatch.setattr(os, name, owned(getattr(os, name)))
    assert files.get("a") is None
    files.put("b", PROGRAM)
    if what == "file":
        assert not file.exists()  # removed, so that it is compiled again
        files.put("a", PROGRAM)
        assert files.get("a") == PROGRAM
    else:
        assert file.exists()
        assert len(list(file.parent.iterdir())) == 1


def test_a_file_that_others_can_write_is_removed(tmp_path):
    files = ProgramFiles(tmp_path)
    files.put("a", PROGRAM)
    [path] = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o620)
    assert files.get("a") is None
    assert not path.exists()


def test_folders_are_created_for_the_user_alone(tmp_path):
    before = os.umask(0)
    try:
        ProgramFiles(tmp_path / "one/two").put("a", PROGRAM)
    finally:
        os.umask(before)
    for path in (tmp_path / "one", tmp_path / "one/two"):
        assert path.stat().st_mode & 0o777 == 0o700
    assert ProgramFiles(tmp_path / "one/two").get("a") == PROGRAM


def tree(folder):
    return sorted((str(path), path.is_file() and path.read_bytes()) for path in folder.rglob("*"))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_a_process_with_fewer_cores_has_other_files(tmp_path):
    """XLA divides loops by the number of cores."""
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        pytest.skip("this machine has one core")
    ProgramFiles(tmp_path).put("a", PROGRAM)
    code = (
        "import os, sys; from pathlib import Path; from emergo.core.cache import ProgramFiles; "
        "os.sched_setaffinity(0, map(int, sys.argv[2:])); "
        "print(ProgramFiles(Path(sys.argv[1])).get('a') is not None)"
    )
    for chosen, found in ((cores, "True\n"), ([min(cores)], "False\n")):
        command = [sys.executable, "-c", code, str(tmp_path), *map(str, chosen)]
        assert subprocess.run(command, capture_output=True, text=True).stdout == found


def test_a_missing_folder_is_ignored(tmp_path):
    gone = ProgramFiles(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    gone.put("a", PROGRAM)
    assert gone.get("a") is None
    (tmp_path / "file").write_text("")
    ProgramFiles(tmp_path / "file").put("a", PROGRAM)
    assert (tmp_path / "file").read_text() == ""


def test_a_full_disk_is_ignored_and_leaves_no_file(tmp_path, monkeypatch):
    write = os.write

    def full(descriptor, content):
        write(descriptor, content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    ProgramFiles(tmp_path).put("a", PROGRAM)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_the_least_recently_used_programs_are_removed_first(tmp_path):
    files = ProgramFiles(tmp_path, most_bytes=10 * 1032)
    for n in range(10):
        files.put(f"{n}", bytes(1000))
        [path] = tmp_path.glob(f"{n}-*")
        os.utime(path, (n, n))
    assert files.get("0") is not None  # this use makes it the most recent
    files.put("10", bytes(1000))
    kept = sorted(int(path.name.partition("-")[0]) for path in tmp_path.iterdir())
    assert kept == [0, 4, 5, 6, 7, 8, 9, 10]


def test_stale_temporary_files_are_removed_and_recent_ones_stay(tmp_path):
    for name in (".old", ".new"):
        (tmp_path / name).write_bytes(b"half")
    two_hours_ago = time.time() - 2 * 3600
    os.utime(tmp_path / ".old", (two_hours_ago, two_hours_ago))
    prune(tmp_path, 1000)
    assert [file.name for file in tmp_path.iterdir()] == [".new"]


# The bound is so small that every process also removes files.
WRITER = """
import sys
from pathlib import Path
from emergo.core.cache import ProgramFiles

files = ProgramFiles(Path(sys.argv[1]), most_bytes=200_000)
for _ in range(10):
    for k in range(20):
        value = bytes([k]) * 20_000
        assert files.get(f"{k}") in (None, value)
        files.put(f"{k}", value)
"""


def test_concurrent_processes_see_whole_programs_or_none(tmp_path):
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


@pytest.fixture
def home(monkeypatch, tmp_path):
    """The home folder of a user without settings."""
    for name in ("EMERGO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    settings = {"jax_enable_compilation_cache": True, "jax_compilation_cache_dir": None}
    before = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_environment_chooses_the_folder(home, monkeypatch):
    assert cache_state() == (home / ".cache/emergo/programs", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "other"))
    assert cache_state().folder == home / "other/emergo/programs"
    monkeypatch.setenv("EMERGO_CACHE", str(home / "third"))
    assert cache_state().folder == home / "third"
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("word", ["", "0", "off", "OFF", "false", "no", "~unknown-user/x"])
def test_the_environment_disables_the_cache(home, monkeypatch, word):
    monkeypatch.setenv("EMERGO_CACHE", word)
    assert "EMERGO_CACHE" in cache_state().off


def test_a_folder_of_jax_is_managed_by_jax(home):
    jax.config.update("jax_compilation_cache_dir", str(home))
    assert cache_state() == (home, "")


def test_unsuitable_folders_are_refused(home, monkeypatch):
    folder = home / "programs"
    monkeypatch.setenv("EMERGO_CACHE", str(folder))
    folder.mkdir(mode=0o700)
    assert cache_state().off == ""
    folder.chmod(0o770)
    assert f"others may write in {folder}" in cache_state().off
    folder.chmod(0o700)
    monkeypatch.setenv("EMERGO_CACHE", str(folder / "inner"))
    folder.chmod(0o707)  # its owner could replace the folder inside
    assert f"others may write in {folder}" in cache_state().off
    monkeypatch.setenv("EMERGO_CACHE", str(folder))
    folder.rmdir()
    folder.write_text("")
    assert "is not a folder that can be written" in cache_state().off
    folder.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        assert "can be written" in cache_state().off
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        assert "free" in cache_state().off

    def denied(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", denied)  # a home folder that may not be entered
        assert "Permission denied" in cache_state().off
    monkeypatch.setenv("EMERGO_CACHE", str(home / ("long" * 1000)))
    assert "File name too long" in cache_state().off


SCRIPT = """
import collections, json, sys
import emergo as em
from emergo import theory
import jax

events = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: events.update([event.rpartition("/")[2]]))
task, model = em.SingleLocation(length=4, dim=2), em.ToyAttention()
optimizer = em.Optimizer("sgd", learning_rate=0.5)
config = em.Config(task, model, optimizer, steps=50, batch=8, n_test=16, precision="fp32")
[result] = em.train([em.Run(config, 0)])
with theory.float64():
    slope = jax.jit(theory.gradient)(jax.numpy.array([0.1, 0.2]), theory.cells(64, 16))
numbers = [float(x) for x in [*result.curves["loss"], *slope.ravel()]]
print(json.dumps([numbers, events["cache_hits"], events["cache_misses"]]))
"""


@pytest.mark.slow  # three processes that train
def test_a_second_process_compiles_only_damaged_programs(tmp_path):
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
    assert compiled > hits  # hits within the first process: programs that it needs twice
    files = sorted(path for path in (tmp_path / "programs").iterdir() if path.is_file())
    assert (tmp_path / "programs").stat().st_mode & 0o777 == 0o700
    assert len(files) == compiled
    for n, file in enumerate(files[::2]):
        content = file.read_bytes()
        file.write_bytes([content[: len(content) // 2], content[:-8] + bytes(8), b""][n % 3])
    one, two = files[1], files[3]  # swapped: each is a whole program, but another one
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    wrong = len(files[::2]) + 2
    assert run() == [numbers, hits + compiled - wrong, wrong]
    assert run() == [numbers, hits + compiled, 0]


# A second process reads what the first has written.
EITHER_FIRST = """
import jax
from emergo.core.cache import cache_state, keep_programs

hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event.endswith("cache_hits")))
keep_programs()
jax.jit(lambda x: jax.random.permutation(jax.random.key(0), x))(jax.numpy.arange(1000.0))
print(cache_state().off, sum(hits))
"""


@pytest.mark.parametrize("first", ["jax", "emergo"])
def test_programs_are_kept_whichever_is_imported_first(tmp_path, first):
    """XLA must not print warnings about programs that it reads, either."""
    kept = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    kept.pop("TF_CPP_MIN_LOG_LEVEL", None)
    environment = kept | {"EMERGO_CACHE": str(tmp_path / "programs"), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", f"import {first}\n{EITHER_FIRST}"]
    hits = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        hits.append(int(done.stdout))
    assert hits[0] == 0 < hits[1]
