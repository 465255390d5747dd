"""Failing disks and damaged files: named in one line, nothing lost, the rest still readable."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from emergo.core.errors import InputError, StorageError
from emergo.store import Store, StudyFolder, read_outcomes, study_status
from emergo.study import executor, run_plan
from emergo.study import study_table as table_of_plan
from emergo.study.results import write_result

from ..study.crowd import made_up, slow_train, study
from ..study.tiny import quiet, rewrite

MODULE = [sys.executable, "-m", "emergo", "study"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A finished study of six runs."""
    monkeypatch.setattr(executor, "train", slow_train)
    folder = StudyFolder(tmp_path / "study")
    study(2, 3).run(folder.path, progress=quiet)
    return folder


def study_table(folder):
    return table_of_plan(folder, folder.read()[0])


def places(folder):
    return [folder.runs / run.identity for run in folder.read()[0].runs]


def cut(data: bytes) -> bytes:
    return data[:-40]


def rename(data: bytes) -> bytes:
    return json.dumps(json.loads(data) | {"identity": "0" * 16}).encode()


# A file of a run and its new content; None removes the file.
DAMAGE = {
    "cut run": ("run.json", cut),
    "empty run": ("run.json", lambda data: b""),
    "no run": ("run.json", None),
    "foreign run": ("run.json", lambda data: b'{"loss": [1, 2]}'),
    "binary run": ("run.json", lambda data: b"\xff\xfe\x00"),
    "another run": ("run.json", rename),
    "cut curves": ("curves.parquet", cut),
    "empty curves": ("curves.parquet", lambda data: b""),
    "no curves": ("curves.parquet", None),
    "folder for a file": ("run.json", "folder"),
}


def damage(path: Path, change) -> None:
    data = path.read_bytes()
    path.unlink()
    if change == "folder":
        path.mkdir()
    elif change is not None:
        path.write_bytes(change(data))


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_run_is_named_kept_and_trained_again(folder, case, indexed):
    read_outcomes(folder.runs)
    if not indexed:
        (folder.runs / ".index.json").unlink()
    place = places(folder)[2]
    name, change = DAMAGE[case]
    damage(place / name, change)
    with pytest.raises(InputError, match=f"{place}: not a finished run that can be read"):
        Store(folder.runs).read(place.name)
    status = study_status(folder)
    assert list(status.broken) == [str(place)]
    assert (status.finished, status.waiting) == (5, 1)
    with pytest.warns(UserWarning, match=place.name):
        assert len(study_table(folder)) == 5
    run_plan(folder)
    assert study_status(folder).complete
    assert not study_status(folder).broken
    assert len(study_table(folder)) == 6
    assert len(list(folder.runs.glob(".broken-*"))) == 1  # nothing is thrown away


def test_foreign_files_are_ignored(folder):
    for parent in (folder.path, *(path for path in folder.path.iterdir() if path.is_dir())):
        (parent / "notes.txt").write_text("mine")
        (parent / "copy of a folder").mkdir()
    (folder.runs / "0123456789abcdef").write_text("a file with the name of a run")
    (folder.claims / "junk.json").write_text("{")
    (folder.failures / "junk.json").write_text("{")
    assert study_status(folder).complete
    assert len(study_table(folder)) == 6
    run_plan(folder)
    assert (folder.path / "notes.txt").exists()


def plan_file(folder):
    [path] = folder.plans.glob("*.json")
    return path


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"schema": 2}', '{"schema": 2, "study": {}, "axes": [], "units": [3]}'],
)
def test_a_damaged_plan_is_named_and_replaced(folder, content):
    before = len(study_table(folder))
    path = plan_file(folder)
    path.write_text(content)
    with pytest.raises(
        InputError, match=rf"{path.name}: not a plan that can be read.*move it away"
    ) as caught:
        study_status(folder)
    assert "\n" not in str(caught.value)
    lines = []
    study(2, 3).open(folder, lines.append)
    assert len(study_table(folder)) == before
    [aside] = folder.plans.glob(f".broken-*-{path.name}")
    assert aside.read_text() == content
    assert lines[0].startswith(f"{path}: not a plan that can be read")
    assert lines[0].endswith(aside.name)


def test_a_damaged_plan_does_not_hide_the_others(folder):
    study(1, 1, name="other").open(folder)
    path = next(path for path in folder.plans.glob("*.json") if '"other"' not in path.read_text())
    path.write_text("{")
    status = study_status(folder)
    assert (status.name, list(status.broken)) == ("other", [str(path)])
    lines = []
    assert [plan.name for plan in folder.read(lines.append)] == ["other"]
    assert len(lines) == 1


def test_a_plan_of_a_later_version_is_named(folder):
    path = plan_file(folder)
    rewrite(path, schema=99)
    for read in (folder.read, lambda: study(2, 3).open(folder)):  # does not move it aside
        with pytest.raises(InputError, match="written by a later version of emergo"):
            read()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_failing_disk_is_named_in_one_line_and_loses_nothing(tmp_path, monkeypatch, number):
    """The disk fails in the middle of a study, when a result is written."""
    monkeypatch.setattr(executor, "train", slow_train)
    folder = StudyFolder(tmp_path)
    study(2, 3).open(folder)
    real = Store.write
    left = [3]

    def fails(self, *run) -> Path:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(number, os.strerror(number))
        return real(self, *run)

    monkeypatch.setattr(Store, "write", fails)
    with pytest.raises(StorageError) as caught:
        run_plan(folder)
    assert str(folder.path) in str(caught.value)
    assert os.strerror(number) in str(caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(Store, "write", real)
    assert study_status(folder).finished == 3
    run_plan(folder)
    assert study_status(folder).complete


def test_a_run_that_exceeds_the_file_size_limit_is_not_stored(tmp_path):
    """The system limits files of this process to 500 bytes, and curves are larger."""
    store = Store(tmp_path)
    made = made_up(study(1, 1).runs[0])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot be written \(File too large\)"):
            write_result(store, made)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []
    write_result(store, made)
    assert made.run.identity in store


def _full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_named_when_a_file_is_written(tmp_path, monkeypatch):
    study(2, 1).write_file(tmp_path / "study.toml")
    before = (tmp_path / "study.toml").read_text()
    monkeypatch.setattr(Path, "write_bytes", _full)
    with pytest.raises(
        StorageError, match=r"study\.toml: cannot be written \(No space left on device\)"
    ):
        study(3, 1).write_file(tmp_path / "study.toml")
    assert (tmp_path / "study.toml").read_text() == before
    read_outcomes(tmp_path)  # fails to write its index, which is only a cache


def _weak():
    """Return a command prefix without the right of root to read and write everything."""
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("no setpriv: root can write everywhere")
    return (
        ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    )


@pytest.mark.parametrize("name", ["studies", "runs"])
def test_a_missing_permission_is_named(folder, name):
    weak = _weak()
    path = folder.path / name
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        done = subprocess.run(
            [*weak, *MODULE, "status", str(folder.path)],
            capture_output=True,
            text=True,
            timeout=300,
        )
    finally:
        path.chmod(mode)
    assert done.returncode == 2
    assert done.stderr.startswith(f"emergo: {path}: cannot be read (Permission denied)")
    assert done.stderr.count("\n") == 1
    assert "move it away" not in done.stderr


READ_ONLY = """
import json, sys
from emergo.core.errors import InputError
from emergo.store import StudyFolder, study_status
from emergo.study import study_curves, study_table
from tests.study.crowd import study
folder = StudyFolder(sys.argv[1])
[plan] = folder.read()
counts = [study_status(folder).finished, len(study_table(folder, plan))]
counts += [len(study_curves(folder, plan)), len(study(2, 3).read(folder.path))]
try:
    study(2, 3).run(folder.path)
except InputError as error:
    print(json.dumps([*counts, str(error)]))
"""


def test_a_read_only_folder_can_be_read(folder):
    """Status and tables work; training fails with one line."""
    weak = _weak()
    everything = [folder.path, *folder.path.rglob("*")]
    (folder.runs / ".index.json").unlink(missing_ok=True)
    for path in everything:
        if path.is_dir():
            path.chmod(0o555)
    try:
        command = [*weak, sys.executable, "-c", READ_ONLY, str(folder.path)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2]
        )
    finally:
        for path in everything:
            if path.is_dir():
                path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    *counts, error = json.loads(done.stdout)
    assert counts == [6, 6, 30, 6]
    assert error.startswith(f"{folder.path}: cannot write to this folder (Permission denied)")
    assert "\n" not in error
