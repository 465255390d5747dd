"""`emergo view`: serve a folder, or export it to one file."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from emergo.cli._view import View
from emergo.view._serve import free_port, listen

from ..view.made_up import finish, made_up_study
from .command import call


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("view")
    finish(made_up_study(dims=[4, 8], lengths=[8, 16], seeds=1), path)
    return path


def test_it_writes_one_file(folder, tmp_path, capsys):
    status, out, _ = call(
        capsys, "view", str(folder), "--export", str(tmp_path / "page.html"), "--json"
    )
    assert status == 0
    assert json.loads(out)["runs"] == 4
    assert json.loads(out)["bytes"] == (tmp_path / "page.html").stat().st_size


def test_it_serves_until_it_is_interrupted(folder):
    """Read the printed address, open it, and stop the server with Ctrl-C."""
    command = [
        sys.executable,
        "-m",
        "emergo",
        "view",
        str(folder),
        "--no-browser",
        "--json",
        "--port",
        str(free_port(21_000)),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]
    with urllib.request.urlopen(address, timeout=30) as answer:
        assert b"<title>emergo</title>" in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(address.partition("?")[0], timeout=30)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(30) == 0
    process.stdout.close()


def test_the_browser_gets_a_file_and_no_token(folder, monkeypatch, capsys):
    """Its command line can be read by every user of the machine."""
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with contextlib.ExitStack() as stack:
        View(folder, no_browser=True)._ready("http://127.0.0.1:2/?token=secret", stack)
        assert opened == []
        View(folder)._ready("http://127.0.0.1:1/?token=secret&a=b", stack)
        [address] = opened
        assert "secret" not in address
        page = Path(urllib.request.url2pathname(address.removeprefix("file://")))
        assert "url=http://127.0.0.1:1/?token=secret&amp;a=b" in page.read_text()
        assert page.stat().st_mode & 0o777 == 0o600
        assert page.parent.stat().st_mode & 0o777 == 0o700
    assert not page.parent.exists()
    assert capsys.readouterr().err.count("Ctrl-C ends it") == 2


def test_wrong_input_is_one_line(folder, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "table.csv").write_text("hello,world\n1,2\n")
    with listen(free_port(21_100)) as taken:
        port = taken.getsockname()[1]
        wrong = {
            ("view", str(tmp_path / "none")): "no such file or folder",
            ("view", str(tmp_path / "empty")): "no study, runs, records, figures or logs here",
            ("view", str(tmp_path / "table.csv")): "unknown column 'step'; known: hello, world",
            (
                "view",
                str(folder),
                "--port",
                str(port),
            ): f"port {port} is taken; --port {free_port(port + 1)} is free",
            ("view", str(folder), "--port", "0"): "--port must be between 1 and 65535",
            ("view", str(folder), "--export", "page.txt"): "name it like page.html",
        }
        for arguments, message in wrong.items():
            status, out, err = call(capsys, *arguments)
            assert (status, out) == (2, "")
            assert message in err
            assert err.count("\n") == 1
