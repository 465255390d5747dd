"""The `emergo` command: exit status, errors of one line, streams and interrupts."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import emergo

from .command import call


def test_version(capsys):
    assert call(capsys, "--version")[1].startswith("emergo 0.")


@pytest.mark.parametrize("arguments", [["--help"], ["theory", "--help"], ["theory", "--length"]])
def test_the_module_is_the_same_program_as_the_command(arguments):
    """The installed script calls `emergo.cli.main`."""
    scripts = importlib.metadata.entry_points(group="console_scripts", name="emergo")
    assert {script.value for script in scripts} <= {"emergo.cli:main"}
    script = "from emergo.cli import main; main()"
    module, command = (
        subprocess.run([sys.executable, *how, *arguments], capture_output=True, text=True)
        for how in (["-m", "emergo"], ["-c", script])
    )
    assert (module.returncode, module.stdout) == (command.returncode, command.stdout)
    assert module.stderr == command.stderr
    assert module.stdout.startswith("usage: emergo") or module.returncode == 2


def test_help_is_fast_and_imports_no_jax():
    """The target is 0.5 s; the bound of the test leaves room for a busy machine."""
    code = (
        "import sys, time; start = time.process_time(); from emergo.cli import main\n"
        "try: main(['--help'])\n"
        "finally: sys.exit('jax' in sys.modules or time.process_time() - start > 1)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Expected one of"),
        (("thery",), "unknown command 'thery'; did you mean theory?"),
        (("figur", "zucchet2025/fig1"), "unknown command 'figur'; did you mean figure or figures?"),
        (("figur", "--out", "{tmp}"), "unknown command 'figur'; did you mean figure or figures?"),
        (("theory",), "--length"),
        (("theory", "--lenght", "8"), "unknown option '--lenght'"),
        (("doctor", "--jsn"), "unknown option '--jsn'; did you mean --json?"),
        (
            ("theory", "--length", "8", "--dim", "4", "--burst", "8"),
            "burst must be smaller than length",
        ),
        (
            ("theory", "--length", "8", "--dim", "4", "--repeat", "1.5"),
            "repeat must be in [0, 1], got 1.5",
        ),
        (
            ("theory", "--length", "0", "--dim", "4"),
            "length must be a whole number of at least 2 and at most 1e15, got 0",
        ),
        (
            ("theory", "--length", "8.5", "--dim", "4"),
            "--length: expected a whole number, got '8.5'",
        ),
        (("theory", "--length", "8", "--dim", "4", "--flow", "exat"), "exact"),
        (("figure",), "name at least one figure"),
        (("figure", "zucchet2025/fig99"), "unknown figure"),
        (("figure", "fig2"), "did you mean zucchet2025/fig2 or yuksel2026/fig2?"),
        (
            ("figure", "zucchet2025/fig1", "zucchet2025/fig99", "--out", "{tmp}/new"),
            "unknown figure",
        ),
        (("figure", "zucchet2025/fig1", "--preset", "big"), "unknown preset 'big'"),
        (("figure", "zucchet2025/fig1", "--out", "{tmp}/file/out"), "cannot write to this folder"),
        (("measure", "{tmp}/none.csv", "--metric", "loss", "--below", "1"), "no such file"),
        (("forecast", "{tmp}/none", "--below", "1"), "{tmp}/none: no such file"),
        (
            ("measure", "{tmp}/runs.csv", "--metric", "plateau", "--below", "1", "--out", "{tmp}"),
            "--out {tmp}: expected the name of a new",
        ),
        (("measure", "{tmp}/runs.csv", "--metric", "plateau"), "--below VALUE or --above VALUE"),
        (
            (
                "measure",
                "{tmp}/runs.csv",
                "--metric",
                "plateau",
                "--below",
                "1",
                "--out",
                "{tmp}/runs.csv",
            ),
            "one of the logs",
        ),
        (("fit", "{tmp}/runs.csv", "--x", "dim", "--x", "length"), "--x is repeated"),
        (("fit", "{tmp}/none.csv"), "no such file"),
        (
            ("fit", "{tmp}/constant.csv"),
            "without --x the law is in dim and length, but",
        ),
        (("fit", "{tmp}/runs.csv", "--x", "dmi"), "did you mean dim"),
        (
            ("fit", "{tmp}/wide.csv", "--x", "zzz"),
            "known: a0, a1, a2, a3, a4, a5, a6, a7, a8, a9 and 60 more",
        ),
        (("figure", "--seeds", "1"), "'--seeds'; `emergo figure --help` lists them"),
        (("sample", "{tmp}/none", "--prompt", ""), "{tmp}/none"),
        (("fit", "{tmp}/runs.csv", "--x", "dim", "--fix", "length"), "write column=exponent"),
        (
            ("fit", "{tmp}/runs.csv", "--x", "dim", "--out", "{tmp}/file"),
            "cannot write to this folder",
        ),
        (("bench",), "unknown command 'bench'"),
        (("report", "{tmp}"), "unknown command 'report'"),
        (("train", "--out", "{tmp}/file"), "cannot write to this folder"),
        (("train", "--heads", "3", "--heads", "4"), "--heads is repeated"),
        (
            ("demo", "--out", "{tmp}/page.html"),
            "the demo writes report.html into a folder; name the folder",
        ),
        (("figure", "zucchet2025/fig3", "--slurm", "minutes=3"), "add --on slurm"),
        (
            ("figure", "zucchet2025/fig3", "--on", "slurm", "--slurm", "minuts=3"),
            "unknown key of [slurm] 'minuts'; did you mean",
        ),
        (("figure", "zucchet2025/fig1", "--seconds", "0"), "--seconds must be positive, got 0"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(capsys, tmp_path, cpu, arguments, words):
    (tmp_path / "file").write_text("")
    (tmp_path / "constant.csv").write_text("dim,plateau\n4,1\n4,2\n4,3\n")
    (tmp_path / "wide.csv").write_text(",".join(f"a{i}" for i in range(70)) + "\n")
    (tmp_path / "runs.csv").write_text("dim,length,plateau\n4,1,1\n8,2,2\n16,2,5\n")
    before = sorted(os.listdir(tmp_path))
    status, out, err = call(capsys, *(a.format(tmp=tmp_path) for a in arguments))
    assert status == 2
    assert out == ""
    assert err.startswith("emergo: ")
    assert err.count("\n") == 1
    assert words.format(tmp=tmp_path) in err
    assert sorted(os.listdir(tmp_path)) == before


def test_a_failure_is_one_line_and_status_1(capsys, monkeypatch):
    monkeypatch.setattr("emergo.theory.describe_cell", lambda *a, **k: 1 / 0)
    status, _, err = call(capsys, "theory", "--length", "8", "--dim", "4")
    assert status == 1
    assert err.startswith("emergo: ZeroDivisionError")
    assert err.count("\n") == 1


def command(code, *arguments, **options):
    """Run a line of shell in which "$@" is Python with these arguments."""
    return subprocess.run(
        ["sh", "-c", code, "sh", sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def test_the_command_works_with_closed_and_full_streams(tmp_path):
    """A file that is opened later must not get the descriptor of a closed stream."""
    version = ("-m", "emergo", "--version")
    done = command('"$@" >&- 2>sh.err <&-', *version, cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "sh.err").read_text() == ""
    opened = (
        "import sys; from emergo.cli import _open_streams; _open_streams(); print(open('f', "
        "'w').fileno(), file=sys.stderr)"
    )
    done = command('"$@" >&- <&-', "-c", opened, cwd=tmp_path)
    assert int(done.stderr) > 2
    if os.path.exists("/dev/full"):
        done = command('"$@" >/dev/full', *version)
        assert done.returncode == 1
        assert (
            done.stderr == "emergo: standard output cannot be written (No space left on device)\n"
        )


def test_a_terminal_of_ascii_gets_what_it_can_show():
    code = (
        "from emergo.core import terminal; from emergo.cli import main; main(['--version']); "
        "terminal.show('R²')"
    )
    done = command(
        '"$@"', "-c", code, env=os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == r"R\xb2"


INTERRUPTED = """
import signal, sys
class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == "tyro":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Presses())
from emergo.cli import main
main(["study", "status", "."])
"""


SWALLOWED = """
import signal, sys
class Loses:
    def find_spec(self, name, path=None, target=None):
        if name == "tyro":
            try:
                signal.raise_signal(signal.SIGINT)
            except BaseException:  # like C code that cannot propagate it
                pass
sys.meta_path.insert(0, Loses())
from emergo.cli import main
main(["--version"])
"""


@pytest.mark.parametrize("script", [INTERRUPTED, SWALLOWED])
def test_an_interrupt_while_the_command_is_imported_is_one_line(script):
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 130
    assert done.stderr == "emergo: interrupted; nothing was left half-written\n"


def test_an_interrupt_before_there_is_a_command_leaves_no_traceback(tmp_path):
    """`python -m emergo` imports nothing slow before it can handle an interrupt."""
    (tmp_path / "sitecustomize.py").write_text(
        INTERRUPTED.replace("tyro", "emergo.cli").partition("from emergo.cli")[0]
    )
    package = Path(emergo.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{package}"}
    done = subprocess.run(
        [sys.executable, "-m", "emergo"], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (130, "")
    code = "import sys, emergo; print('typing' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-Sc", code], capture_output=True, text=True, cwd=package
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--out", ""),
        ("train", "--out="),
        ("fit", ""),
        ("study", "run", "x.toml", "--out", ""),
    ],
)
def test_an_empty_text_is_not_the_current_folder(capsys, words):
    status, _, err = call(capsys, *words)
    assert status == 2
    assert "a text is empty" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("study", "run", "study.toml", "out"),
        ("train", "--task", "recal"),
        ("theory", "--lenght", "8"),
    ],
)
def test_on_a_terminal_wrong_input_is_a_line_without_codes(arguments):
    ours, theirs = os.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "emergo", *arguments], stdin=theirs, stdout=theirs, stderr=theirs
        )
        assert process.wait(300) == 2
        written = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert written.startswith("emergo: ")
    assert written.count("\n") == 1
    assert "x1b" not in written
    assert "\x1b" not in written
