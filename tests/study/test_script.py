"""Strings in sbatch scripts: a recording stand-in for Slurm sees whatever would be submitted."""

import shlex

import pytest

from emergo.core.errors import InputError
from emergo.store import StudyFolder
from emergo.study import Slurm, build_slurm, submit_plan

from .tiny import tiny

MARK = "touch owned"
HOSTILE = {
    "newline": f"a\n{MARK}\n#",
    "carriage return": f"a\r{MARK}",
    "line separator": f"a\u2028{MARK}",
    "single quote": f"a'; {MARK}; '",
    "double quote": f'a"; {MARK}; "',
    "backtick": f"`{MARK}`",
    "command substitution": f"$({MARK})",
    "variable": "$HOME",
    "semicolon": f"a; {MARK}",
    "redirection": "a > owned",
    "backslash": f"a\\\n{MARK}",
    "comment": f"a #{MARK}",
    "NUL": "a\0b",
    "escape": "a\x1b]0;owned\x07",
    "direction of writing": "a\u202eb",
    "surrogate": "a\ud800b",
}
FOREIGN = "größe"  # letters of another alphabet
FIELDS = {
    "partition": lambda text: {"partition": text},
    "account": lambda text: {"account": text},
    "key of extra": lambda text: {"extra": {text: "x"}},
    "value of extra": lambda text: {"extra": {"qos": text}},
}


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """The scripts given to a program `sbatch` that only records them."""
    programs = tmp_path / "bin"
    programs.mkdir()
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    sbatch = programs / "sbatch"
    sbatch.write_text(f'#!/bin/sh\ncp "$1" {scripts}/$$\necho "Submitted batch job 7"\n')
    (programs / "srun").write_text("#!/bin/sh\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    return lambda: [path.read_text() for path in scripts.iterdir()]


def submit(path, name="study", **asked):
    folder = StudyFolder(path)
    study = tiny(seeds=1, name=name, slurm=Slurm(gpus=0, **asked))
    plan, _ = study.open(folder)
    return submit_plan(folder, plan, study.slurm)


@pytest.mark.parametrize("text", [*HOSTILE.values(), FOREIGN], ids=[*HOSTILE, "foreign"])
@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_no_field_becomes_shell(field, text):
    with pytest.raises(InputError, match=r"slurm.*may"):
        Slurm(**field(text))
    with pytest.raises(InputError, match=r"\[slurm\].*may"):  # as from a file or a plan
        build_slurm(field(text))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_name_becomes_shell(text, recorded, tmp_path):
    with pytest.raises(InputError, match=r"the study's name .* may only have"):
        submit(tmp_path / "out", name=text)
    assert recorded() == []


@pytest.mark.parametrize("text", ["a\nb", "a'b", "a`b`", "$(b)", "a%jb", "a\x1bb"])
def test_no_folder_becomes_shell(text, recorded, tmp_path):
    with pytest.raises(InputError, match=r"the folder of the study .* may only have"):
        submit(tmp_path / text)
    assert recorded() == []


@pytest.mark.parametrize("text", ["a\nb", "a\0b", "a\x1bb", "a\u2028b", "größe"])
def test_a_line_of_setup_is_one_line(text):
    with pytest.raises(InputError, match=r"slurm.setup .* may only have"):
        Slurm(setup=[text])


@pytest.mark.parametrize(
    "option", ["export", "output", "error", "chdir", "wrap", "bbf", "get_user_env", "container"]
)
def test_no_option_decides_which_code_runs_or_where_output_goes(option):
    with pytest.raises(InputError, match=f"extra may not have the option '{option}'"):
        Slurm(extra={option: "x"})


@pytest.mark.parametrize("value", [None, ["low"], {"a": 1}, False])
def test_a_value_of_extra_is_a_text_or_a_number(value):
    with pytest.raises(InputError, match=r"extra qos .* may be"):
        Slurm(extra={"qos": value})


def test_what_clusters_need_arrives_in_one_line_each(recorded, tmp_path):
    """Only comments, the announced lines of `setup`, and the command of submitit."""
    extra = {
        "constraint": "[a100|v100]&nvme*2",
        "gres": "gpu:a100:2",
        "nodelist": "n[1-4,7]",
        "mail-user": "someone@example.org",
        "exclusive": True,
        "nice": 100,
        "time-min": "1-00:00:00",
    }
    setup = ["module load 'cuda/12' && echo \"$HOME\" `date` $(date)", "#SBATCH --image=x"]
    asked = {"partition": "gpu-a,gpu_b", "account": "lab.x/y", "extra": extra, "setup": setup}
    sent = submit(tmp_path / "größe (1)+a", name="größe (1), p = 0.5", **asked)
    assert sent.folder.stat().st_mode & 0o077 == 0  # the job executes the pickle in it
    [script] = recorded()
    lines = script.splitlines()
    code = [line for line in lines if line and not line.startswith("#")]
    assert code[:2] == [setup[0], "export SUBMITIT_EXECUTOR=slurm"]
    assert shlex.split(code[2])[0] == "srun"
    assert len(code) == 3
    options = [shlex.split(line)[1] for line in lines if line.startswith("#SBATCH")]
    assert "--job-name=emergo-größe (1), p = 0.5" in options
    assert "--partition=gpu-a,gpu_b" in options
    for name, value in extra.items():
        assert (f"--{name}" if value is True else f"--{name}={value}") in options
