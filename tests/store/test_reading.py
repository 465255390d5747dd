"""Reading a folder executes nothing from it, imports nothing named in it, and writes only the
index."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from emergo.store import Store, StudyFolder
from emergo.study.results import write_result

from ..study.crowd import made_up, study
from ..study.tiny import rewrite

READER = """
import contextlib, io, json, os, sys
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink"}
CHANGES |= {"os.truncate", "shutil.rmtree"}
EXECUTES = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pickle.find_class"}
EXECUTES |= {"socket.connect"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
seen = {"imports": [], "writes": [], "executed": []}
def watch(event, arguments):
    if event == "import":
        seen["imports"].append(arguments[0])
    elif event == "open" and arguments[2] & WRITES:
        seen["writes"].append(os.path.abspath(str(arguments[0])))
    elif event in CHANGES:
        paths = [a for a in arguments[:2] if isinstance(a, (str, bytes, os.PathLike))]
        seen["writes"] += [os.path.abspath(str(path)) for path in paths]
    elif event in EXECUTES:
        seen["executed"].append([event, str(arguments[0])])
folder, out = sys.argv[1:]
table = f"{out}/t.parquet"
curves = f"{out}/c.parquet"
from emergo.cli import main
sys.addaudithook(watch)
statuses = []
for words in (
    ["study", "status", folder],
    ["study", "show", folder],
    ["study", "export", folder, "--to", table, "--curves", curves],
    ["measure", curves, "--metric", "loss", "--below", "0.3", "--run", "identity"],
    ["fit", table, "--x", "dim", "--resamples", "100", "--out", out],
    ["view", folder, "--export", f"{out}/view.html"],
):
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            main(words)
            statuses.append(0)
        except SystemExit as stop:
            statuses.append(stop.code)
print(json.dumps(seen | {"statuses": statuses}))
"""


class Trap:
    """An object that creates a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("trapped",)


@pytest.mark.slow
def test_reading_executes_imports_and_writes_nothing(tmp_path):
    folder = StudyFolder(tmp_path / "sent")
    study(3, 3).open(folder)
    for run in study(3, 3).runs:
        write_result(Store(folder.runs), made_up(run))
    [plan] = folder.plans.glob("*.json")
    trap = "import os; os.mkdir('trapped')"
    for name in ("trap_module.py", "sitecustomize.py", "conftest.py"):
        (folder.path / name).write_text(trap)
    job = folder.path / "slurm" / "20260101-000000-abcdef"
    job.mkdir(parents=True)
    (job / "1_submitted.pkl").write_bytes(pickle.dumps(Trap()))  # as submitit writes them
    content = json.loads(plan.read_text())
    plugins = [str(folder.path / "trap_module.py"), "trap_module", "antigravity"]
    rewrite(
        plan, study=content["study"] | {"plugins": plugins, "slurm": {"setup": ["mkdir trapped"]}}
    )
    out = tmp_path / "out"
    cwd = tmp_path / "cwd"
    out.mkdir()
    cwd.mkdir()
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "MPLCONFIGDIR": str(tmp_path / "mpl"),
    }
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-c", READER, str(folder.path), str(out)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=cwd, env=environment
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["statuses"] == [0] * 6, done.stderr
    assert not {"trap_module", "antigravity", "conftest"} & set(seen["imports"])
    assert not any("trap" in name for name in seen["imports"])
    # matplotlib looks for fonts
    fonts = {("subprocess.Popen", "fc-list"), ("subprocess.Popen", "lsb_release")}
    assert {tuple(one) for one in seen["executed"]} <= fonts
    allowed = (
        str(folder.runs / ".index.json"),
        f"{folder.runs}/..index.json.",
        str(out),
        str(tmp_path / "mpl"),
        os.devnull,
    )
    # Compiled modules may be cached next to their sources.
    allowed += (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2] / "emergo"))
    others = [path for path in seen["writes"] if not path.startswith((*allowed, "/tmp/emergo"))]
    assert [path for path in others if "__pycache__" not in path] == []
    assert os.listdir(cwd) == []
