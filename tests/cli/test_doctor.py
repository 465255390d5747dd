"""`emergo doctor` and `emergo completion`."""

import json
import shutil
import subprocess

import pytest

from emergo import _doctor
from emergo._doctor import Finding

from .command import call


@pytest.fixture
def findings(monkeypatch):
    made = [Finding("speed", "disk", "ok", "1 ms"), Finding("extras", "bench", "missing", "lacks torch")]
    monkeypatch.setattr(_doctor, "examine", lambda folder, timing: iter(made))
    return made


def test_nothing_wrong_is_status_0(capsys, findings):
    status, out, _ = call(capsys, "doctor")
    assert status == 0
    assert "not there bench" in out


def test_a_fault_is_status_1_also_as_json(capsys, findings):
    findings.append(Finding("faults of JAX", "fused reductions", "fault", "wrong by 3"))
    status, out, _ = call(capsys, "doctor", "--json")
    assert status == 1
    report = json.loads(out)
    assert report["worst"] == "fault"
    assert report["findings"][-1] == findings[-1]._asdict()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_the_commands(capsys, shell):
    status, out, _ = call(capsys, "completion", shell)
    assert status == 0
    assert "emergo" in out
    assert "figure" in out


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_a_command(capsys, tmp_path):
    (tmp_path / "completion").write_text(call(capsys, "completion", "bash")[1])
    words = 'COMP_WORDS=(emergo fig); COMP_CWORD=1; COMP_LINE="emergo fig"; COMP_POINT=10'
    ask = 'f=$(complete -p emergo | sed "s/.*-F \\([^ ]*\\).*/\\1/"); $f; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f". ./completion; {words}; {ask}"], cwd=tmp_path, capture_output=True, text=True)
    assert {"figure", "figures"} <= set(done.stdout.split()), done.stderr
