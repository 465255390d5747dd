"""Whoever only reads a folder executes nothing from it, imports nothing named in it, and writes nothing there but the index."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from emergo.studies import Store, StudyFolder

from .crowd import made_up, study
from .tiny import rewrite

READER = """
import contextlib, io, json, os, sys
seen = {"imports": [], "writes": [], "executed": []}
def watch(event, arguments):
    if event == "import":
        seen["imports"].append(arguments[0])
    elif event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
        seen["writes"].append(os.path.abspath(str(arguments[0])))
    elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree"):
        seen["writes"] += [os.path.abspath(str(a)) for a in arguments[:2] if isinstance(a, (str, bytes, os.PathLike))]
    elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pickle.find_class", "socket.connect"):
        seen["executed"].append([event, str(arguments[0])])
folder, out = sys.argv[1:]
from emergo.cli import main
sys.addaudithook(watch)
commands = [["study", "status", folder], ["study", "show", folder], ["study", "show", folder, "--toml"]]
commands += [["study", "export", folder, "--to", f"{out}/t.parquet", "--curves", f"{out}/c.parquet"]]
commands += [["measure", f"{out}/c.parquet", "--metric", "loss", "--below", "0.3", "--run", "identity"]]
commands += [["fit", f"{out}/t.parquet", "--x", "dim", "--resamples", "100", "--out", out]]
commands += [["report", folder, "--out", f"{out}/report.html"], ["view", folder, "--export", f"{out}/view.html"]]
statuses = []
for words in commands:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            main(words)
            statuses.append(0)
        except SystemExit as stop:
            statuses.append(stop.code)
print(json.dumps(seen | {"statuses": statuses}))
"""


class Trap:
    """Unpickled, it leaves a trace."""

    def __reduce__(self):
        return os.mkdir, ("trapped",)


@pytest.mark.slow
def test_reading_executes_imports_and_writes_nothing(tmp_path):
    folder = StudyFolder(tmp_path / "sent")
    study(3, 3).open(folder)
    for run in study(3, 3).runs:
        Store(folder.runs).write(made_up(run))
    [plan] = folder.plans.glob("*.json")
    trap = "import os; os.mkdir('trapped')"
    for name in ("trap_module.py", "sitecustomize.py", "conftest.py"):
        (folder.path / name).write_text(trap)
    job = folder.path / "slurm" / "20260101-000000-abcdef"
    job.mkdir(parents=True)
    (job / "1_submitted.pkl").write_bytes(pickle.dumps(Trap()))  # as submitit leaves them
    content = json.loads(plan.read_text())
    plugins = [str(folder.path / "trap_module.py"), "trap_module", "antigravity"]
    rewrite(plan, study=content["study"] | {"plugins": plugins, "slurm": {"setup": ["mkdir trapped"]}})
    out, cwd = tmp_path / "out", tmp_path / "cwd"
    out.mkdir()
    cwd.mkdir()
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "MPLCONFIGDIR": str(tmp_path / "mpl")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # bytecode is written through a number, which says nothing of where
    command = [sys.executable, "-c", READER, str(folder.path), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["statuses"] == [0] * 8, done.stderr
    assert not {"trap_module", "antigravity", "conftest"} & set(seen["imports"])
    assert not any("trap" in name for name in seen["imports"])
    fonts = {("subprocess.Popen", "fc-list"), ("subprocess.Popen", "lsb_release")}  # matplotlib looks for its fonts
    assert {tuple(one) for one in seen["executed"]} <= fonts
    allowed = (str(folder.runs / ".index.json"), f"{folder.runs}/..index.json.", str(out), str(tmp_path / "mpl"), os.devnull)
    libraries = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2] / "emergo"))  # compiled modules
    others = [path for path in seen["writes"] if not path.startswith(allowed) and not path.startswith(libraries)]
    assert [path for path in others if "__pycache__" not in path and not path.startswith("/tmp/emergo")] == []
    assert os.listdir(cwd) == []


@pytest.mark.slow
def test_run_says_what_it_imports_before_it_does(tmp_path):
    """The plugin says so itself when it is imported; the line of the command comes first."""
    folder = StudyFolder(tmp_path / "sent")
    study(1, 1).open(folder)
    [plan] = folder.plans.glob("*.json")
    (tmp_path / "mine.py").write_text("import sys; sys.stderr.write('imported\\n'); raise RuntimeError('no')")
    rewrite(plan, study=json.loads(plan.read_text())["study"] | {"plugins": [str(tmp_path / "mine.py")]})
    command = [sys.executable, "-m", "emergo", "study", "run", str(folder.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 2
    first, second, *_ = done.stderr.splitlines()
    assert first == f"emergo: imports {tmp_path / 'mine.py'}, as the study asks for"
    assert second == "imported"
