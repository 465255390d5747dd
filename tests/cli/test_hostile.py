"""Hostile surroundings of a command: widths of the terminal, names with escapes, mistyped paths,
logs with repeated names, folders that cannot be read."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import emergo

from ..view.made_up import finish, made_up_study
from .command import call

ESCAPES = "\x1b]0;owned\x07\x1b[31m\u202eabc\x9b2J\r"
UNSAFE = [letter for letter in set(ESCAPES) if not letter.isalnum() and letter not in ";[]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "study"
    study = made_up_study(dims=[4, 8], lengths=[8], seeds=1, name=f"name {ESCAPES}")
    finish(study, path, evaluations=10)
    return path


@pytest.mark.slow  # each starts Python
@pytest.mark.parametrize("columns", ["1", "5", "0", "²", "-3", "99999999999"])
def test_help_ends_at_any_width(columns):
    command = [sys.executable, "-m", "emergo", "--help"]
    environment = os.environ | {"COLUMNS": columns, "LINES": columns}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "forecast" in "".join(done.stdout.split())


@pytest.mark.parametrize("columns", ["0", "1", "²"])
def test_tables_are_shown_at_any_width(folder, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    status, out, err = call(capsys, "study", "show", str(folder))
    assert (status, err) == (0, "")
    assert "plat" in out


COMMANDS = [["study", "status"], ["study", "show"], ["study", "export"], ["view", "--export"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_names_are_printed_without_escapes(folder, command, tmp_path, capsys):
    """Names of studies, files and folders come from others."""
    place = tmp_path / f"place {ESCAPES}"
    place.symlink_to(folder)
    given = {
        "export": ["--to", f"{tmp_path}/{ESCAPES}.csv"],
        "--export": [f"{tmp_path}/{ESCAPES}.html"],
    }
    words = [*command[:1], *(w for w in command[1:] if w[0] != "-"), str(place)]
    words += [*(w for w in command[1:] if w[0] == "-"), *given.get(command[-1], [])]
    status, out, err = call(capsys, *words)
    assert status == 0, err
    assert not [letter for letter in UNSAFE if letter in out + err]
    status, out, err = call(capsys, *words[:-1], f"{tmp_path}/none/{ESCAPES}")
    assert status == 2
    assert not [letter for letter in UNSAFE if letter in out + err]


def test_everything_is_printed_by_one_module():
    """`core/terminal.py` escapes what it prints. The exceptions print constants, or pass it on."""
    package = Path(emergo.__file__).parent
    printing = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    }
    assert printing == {"cli/__init__.py", "core/terminal.py", "study/_worker.py"}


def test_the_step_is_no_metric(tmp_path, capsys):
    log = tmp_path / "log.csv"
    log.write_text("step,loss\n0,1\n1,0.5\n")
    for command in ("measure", "forecast"):
        words = [command, str(log), "--metric", "loss", "--step", "loss", "--below", "1"]
        status, _, err = call(capsys, *words)
        assert status == 2
        assert "is the column of steps" in err


@pytest.mark.parametrize("plugin", ["..evil", "", ".", "a..b", "a b", "a/b"])
def test_a_wrong_plugin_is_refused(plugin, tmp_path, capsys):
    path = tmp_path / "study.toml"
    path.write_text(f'plugins = ["{plugin}"]\n[task]\nlength = 8\ndim = 2\n')
    status, _, err = call(capsys, "study", "run", str(path), "--out", str(tmp_path / "out"))
    assert status == 2
    assert "the name of a module" in err


TWICE = {
    "log.csv": "step,loss,loss\n0,1,2\n1,0.5,2\n",
    "log.jsonl": '{"step": 0, "loss": 1, "loss": 2}\n{"step": 1, "loss": 1}\n',
    "trainer_state.json": '{"log_history": [{"step": 0, "loss": 1, "loss": 2}]}',
}


@pytest.mark.parametrize("name", TWICE)
def test_a_repeated_name_is_refused(name, tmp_path, capsys):
    (tmp_path / name).write_text(TWICE[name])
    words = ["measure", str(tmp_path / name), "--metric", "loss", "--below", "1"]
    status, _, err = call(capsys, *words)
    assert status == 2
    assert "'loss' twice" in err


def test_a_mistyped_folder_is_named_and_not_created(folder, tmp_path, capsys):
    log = tmp_path / "log.csv"
    log.write_text("step,loss\n0,1\n1,0.5\n")
    gone = tmp_path / "mistyped" / "inner"
    for words in (
        ["study", "export", str(folder), "--to", f"{gone}/a.csv"],
        ["study", "export", str(folder), "--to", f"{tmp_path}/a.csv", "--curves", f"{gone}/b.csv"],
        ["measure", str(log), "--metric", "loss", "--below", "1", "--out", f"{gone}/a.csv"],
        ["view", str(folder), "--export", f"{gone}/a.html"],
    ):
        status, _, err = call(capsys, *words)
        assert status == 2, err
        assert f"the folder {gone} does not exist" in err
    assert not gone.parent.exists()


def test_a_folder_that_cannot_be_read_is_named_as_such(folder, monkeypatch, capsys):
    """Not as one that cannot be written. Root may read everything, so the error is made up."""
    runs = str(folder / "runs")

    def denied(ask):
        def asked(path, *more):
            if str(path) == runs:
                raise PermissionError(13, "Permission denied", runs)
            return ask(path, *more)

        return asked

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, denied(getattr(os, name)))
    for words in (["status"], ["show"], ["run"]):
        status, _, err = call(capsys, "study", *words, str(folder))
        assert status == 2
        assert f"{runs}: cannot be read (Permission denied)" in err
