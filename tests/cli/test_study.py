"""`emergo study`: exit status, one line per error, one JSON object, and the files it writes."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from emergo.cli._study import StatusCommand, StudyOptions
from emergo.core.errors import InputError
from emergo.models import Transformer
from emergo.store import StudyFolder
from emergo.study import Fit, Study
from emergo.tasks import SingleLocation
from emergo.training import Optimizer, OutOfTime, Result

from . import command

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


def call(capsys, *arguments):
    """Return exit status, standard output and standard error of `emergo study`."""
    return command.call(capsys, "study", *map(str, arguments))


def study(**options):
    """Return a small study, by default with two dims and one seed."""
    task = SingleLocation(8, 4, position="random", indicator=True)
    model = Transformer(layers=1, heads=1, width=8)
    usual = {"grid": {"dim": [2, 3]}, "seeds": 1, "steps": 100, "precision": "fp32"}
    return Study(task, model, Optimizer(learning_rate=1e-3), **(usual | options))


def fake_train(runs, *, on_end, **_):
    """Replace training: runs end at once with five evaluations; every third seed is censored."""
    for run in runs:
        loss = np.linspace(1.0, 0.05 if run.seed % 3 else 0.5, 5).astype(np.float32)
        maps = np.ones((5, 1, 1), np.float32)
        curves = {"step": np.arange(5) * 25, "loss": loss, "attention": maps, "entropy": maps}
        on_end(Result.measured(run, curves, None, "cpu"))


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("emergo.study.executor.train", fake_train)


def begin(path, *studies):
    """Return a folder of studies without finished runs."""
    folder = StudyFolder(path / "begun")
    for each in studies:
        each.open(folder)
    return folder


@pytest.fixture
def file(tmp_path):
    study(
        tune={"learning_rate": [1e-3, 3e-3]}, grid={"dim": [2, 4]}, seeds=3, name="tuned"
    ).write_file(tmp_path / "tuned.toml")
    return tmp_path / "tuned.toml"


@pytest.mark.usefixtures("quick")
def test_from_the_file_to_the_table(capsys, tmp_path, file):
    out = tmp_path / "out"
    status, said, err = call(capsys, "run", file, "--out", out)
    assert (status, err) == (0, "")
    assert "12 of 12 runs finished (8 reached, 4 censored, 0 failed)" in said
    status, said, _ = call(capsys, "status", out)
    assert status == 0
    assert said.startswith("tuned: 12 of 12 runs finished")
    status, said, _ = call(capsys, "status", out, "--watch", "--json")
    assert json.loads(said)["complete"] is True
    status, said, _ = call(capsys, "show", out)
    assert status == 0
    assert "3 of 3" in said
    assert said.count("*") == 2  # one learning rate is kept for each dim
    status, said, _ = call(
        capsys,
        "export",
        out,
        "--to",
        tmp_path / "table.parquet",
        "--curves",
        tmp_path / "curves.csv",
    )
    assert status == 0
    table = pd.read_parquet(tmp_path / "table.parquet")
    assert {"dim", "learning_rate", "seed", "plateau", "censored", "state", "chosen"} <= set(
        table.columns
    )
    assert len(table) == 12
    assert table["chosen"].sum() == 6
    assert len(pd.read_csv(tmp_path / "curves.csv")) == 12 * 5
    status, said, _ = call(capsys, "run", file, "--out", out, "--json")
    assert json.loads(said)["finished"] == 12


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            ("keep.csv",),
            "--to {tmp}/keep.csv: expected the name of a new .csv or .parquet file, or of a table",
        ),
        (
            ("t.csv", "keep.csv"),
            "--curves {tmp}/keep.csv: expected the name of a new",
        ),
        (
            ("t.csv", "c.txt"),
            "--curves {tmp}/c.txt: expected the name of a new .csv or .parquet file",
        ),
        (("t.csv", "out"), "--curves {tmp}/out: expected the name of a new"),
    ],
)
@pytest.mark.usefixtures("quick")
def test_a_refused_export_leaves_files_unchanged(capsys, tmp_path, file, files, words):
    call(capsys, "run", file, "--out", tmp_path / "out")
    (tmp_path / "keep.csv").write_text("my,own\n1,2\n")
    options = zip(("--to", "--curves"), [tmp_path / name for name in files], strict=False)
    status, _, err = call(
        capsys, "export", tmp_path / "out", *(word for option in options for word in option)
    )
    assert status == 2
    assert words.format(tmp=tmp_path) in err
    assert (tmp_path / "keep.csv").read_text() == "my,own\n1,2\n"
    assert not (tmp_path / "t.csv").exists()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.usefixtures("quick")
def test_an_export_may_be_made_again(capsys, tmp_path, file, suffix):
    call(capsys, "run", file, "--out", tmp_path / "out")
    files = ("--to", tmp_path / f"t.{suffix}", "--curves", tmp_path / f"c.{suffix}")
    assert [call(capsys, "export", tmp_path / "out", *files)[0] for _ in range(2)] == [0, 0]


@pytest.mark.usefixtures("quick")
def test_growing(capsys, tmp_path, file):
    out = tmp_path / "out"
    call(capsys, "run", file, "--out", out)
    status, said, _ = call(capsys, "grow", out, "--axis", "dim=8", "--seeds", "4")
    assert (status, said.split(";")[0]) == (0, "24 runs, 12 of them new")
    status, said, _ = call(capsys, "status", out, "--json")
    assert (json.loads(said)["finished"], json.loads(said)["waiting"]) == (12, 12)
    status, said, err = call(capsys, "export", out, "--to", tmp_path / "table.csv")
    assert "12 of 24 runs are not finished and not in the table" in err
    status, said, _ = call(capsys, "run", out)
    assert "24 of 24 runs finished" in said
    assert "(12 of them before)" in said
    grown = json.loads(call(capsys, "show", out, "--json")[1])["study"]
    assert Study.from_data(grown).count == 24
    status, said, _ = call(capsys, "run", file, "--out", out)  # a part of it, as a separate study
    assert "12 of 12 runs finished" in said


def test_an_axis_may_be_named_more_than_once(capsys, tmp_path, file):
    folder = begin(tmp_path, Study.read_file(file))
    status, said, _ = call(
        capsys, "grow", folder.path, "--axis", "dim=8", "learning_rate=1e-2", "dim=16"
    )
    assert (status, said.split(";")[0]) == (0, "36 runs, 24 of them new")
    assert folder.read()[0].study["grid"]["dim"] == [2, 4, 8, 16]


@pytest.mark.parametrize("more", [("--seeds", "2"), ("--axis", "dim=2")])
def test_growing_by_existing_values_changes_nothing(capsys, tmp_path, file, more):
    folder = begin(tmp_path, Study.read_file(file))
    before = [path.read_bytes() for path in folder.plans.iterdir()]
    status, said, err = call(capsys, "grow", folder.path, *more)
    assert (status, said, err) == (
        0,
        f"12 runs, 0 of them new; emergo study run {folder.path} trains them\n",
        "",
    )
    assert [path.read_bytes() for path in folder.plans.iterdir()] == before
    assert json.loads(call(capsys, "grow", folder.path, *more, "--json")[1]) == {
        "runs": 12,
        "new": 0,
    }


def test_before_the_first_run_there_is_no_law(capsys, tmp_path):
    folder = begin(tmp_path, study(grid={"dim": [2, 4]}, seeds=3, law=Fit(["dim"])))
    status, said, _ = call(capsys, "show", folder.path)
    assert (status, said) == (
        0,
        "study: 0 of 6 runs are finished\nno law yet: no run is finished\n",
    )


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_watching_an_idle_study_prints_changes(capsys, tmp_path, monkeypatch, form):
    folder = begin(tmp_path, study())
    updates = [0]

    def sleep(seconds):
        updates[0] += 1
        if updates[0] == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        StatusCommand(folder.path, watch=True, json=bool(form)).run()
    said, err = capsys.readouterr()
    assert err == ""
    if form:
        assert said.count("\n") == 3  # one per update
    else:
        assert " ".join(said.split()).count(f"run {folder.path}` continues it") == 1


@pytest.mark.usefixtures("quick")
def test_a_folder_of_several_studies(capsys, tmp_path):
    """All studies are shown and exported, or one by its name; a shared run counts once."""
    folder = begin(
        tmp_path,
        study(name="one"),
        study(name="other", grid={"burst": [1, 2]}, seeds=2).replace(task__dim=3),
    )
    status, said, _ = call(capsys, "run", folder.path)
    assert (status, "5 of 5 runs finished" in said) == (0, True)
    assert call(capsys, "status", folder.path)[1].startswith("one, other: 5 of 5 runs finished")
    assert call(capsys, "status", folder.path, "--study", "one")[1].startswith(
        "one: 2 of 2 runs finished"
    )
    said = call(capsys, "show", folder.path)[1]
    assert [line for line in said.splitlines() if "runs are finished" in line] == [
        "one: 2 of 2 runs are finished",
        "other: 4 of 4 runs are finished",
    ]
    shown = json.loads(call(capsys, "show", folder.path, "--json")[1])["studies"]
    assert [report["axes"] for report in shown] == [["dim"], ["burst"]]
    assert json.loads(call(capsys, "show", folder.path, "--study", "other", "--json")[1])[
        "axes"
    ] == ["burst"]
    counts = {}
    for more in ((), ("--study", "one")):
        written = (
            "export",
            folder.path,
            "--to",
            tmp_path / "t.csv",
            "--curves",
            tmp_path / "c.csv",
            *more,
        )
        assert call(capsys, *written)[0] == 0
        counts[more] = (len(pd.read_csv(tmp_path / "t.csv")), len(pd.read_csv(tmp_path / "c.csv")))
    assert counts == {(): (5, 25), ("--study", "one"): (2, 10)}
    assert call(capsys, "grow", folder.path, "--study", "one", "--seeds", "2")[1].startswith(
        "4 runs, 1 of them new"
    )


def test_studies_with_equal_names_are_chosen_by_their_keys(capsys, tmp_path):
    folder = begin(tmp_path, study(), study().replace(task__repeat=0.5))
    keys = [plan.key for plan in folder.read()]
    heads = [
        line
        for line in call(capsys, "show", folder.path)[1].splitlines()
        if "runs are finished" in line
    ]
    finished = "0 of 2 runs are finished"
    assert len(heads) == 2
    assert {f"study {key}: {finished}" for key in keys} & {*heads}
    assert {f"study {key} (repeat = 0.5): {finished}" for key in keys} & {*heads}
    capsys.readouterr()
    with pytest.raises(InputError, match=r"\(study: repeat = 0\.5\)"):
        StudyOptions(folder.path).read_study()
    for key in keys:
        shown = json.loads(call(capsys, "show", folder.path, "--study", key, "--json")[1])
        assert shown["runs"] == 2


@pytest.mark.usefixtures("quick")
def test_imported_plugins_are_announced(capsys, tmp_path):
    (tmp_path / "plugin_of_a_study.py").write_text("")
    (tmp_path / "s.toml").write_text(
        'plugins = ["plugin_of_a_study.py"]\nseeds = 1\n[task]\nlength = 8\ndim = 2\n'
    )
    status, _, err = call(capsys, "run", tmp_path / "s.toml", "--out", tmp_path / "out")
    assert (status, err) == (
        0,
        "emergo: imports plugin_of_a_study.py, because the study asks for it\n",
    )
    _, _, err = call(capsys, "run", tmp_path / "out")
    assert (
        err
        == f"emergo: imports {tmp_path / 'plugin_of_a_study.py'}, because the study asks for it\n"
    )
    assert call(capsys, "show", tmp_path / "out")[2] == ""  # reading imports nothing


def test_parameters_are_kept_on_request(capsys, tmp_path, engine):
    study(name="kept").write_file(tmp_path / "s.toml")
    assert (
        call(
            capsys,
            "run",
            tmp_path / "s.toml",
            "--out",
            tmp_path / "out",
            "--keep",
            "--n-parallel",
            "4",
        )[0]
        == 0
    )
    [(runs, n_parallel, keep)] = engine.asked
    assert (len(runs), n_parallel, keep[:2]) == (2, 4, (0, 25))
    begin(tmp_path, study(name="kept"))
    assert call(capsys, "run", tmp_path / "begun", "--keep")[0] == 0
    assert engine.asked[1][2][:2] == (0, 25)


def test_a_study_that_runs_out_of_time_reports_it(capsys, tmp_path, monkeypatch):
    def out_of_time(runs, **options):
        assert options["deadline"] is not None
        raise OutOfTime

    monkeypatch.setattr("emergo.study.executor.train", out_of_time)
    study().write_file(tmp_path / "s.toml")
    status, said, _ = call(
        capsys, "run", tmp_path / "s.toml", "--out", tmp_path / "out", "--seconds", "5"
    )
    assert status == 0
    assert said.splitlines()[0].startswith("0 of 2 runs finished")
    assert said.splitlines()[-1] == "the time is over; the same command continues"


def test_runs_in_checkpoints_are_shown_with_their_steps(capsys, tmp_path):
    folder = begin(tmp_path, study())
    unit = folder.checkpoints / "unit"
    unit.mkdir(parents=True)
    runs = [{"run": run.identity, "at": 1000 * i} for i, run in enumerate(folder.read()[0].runs, 1)]
    meta = json.dumps({"stacks": [[*runs, None]]}).encode()
    with open(unit / "a.npz", "wb") as file:
        file.write(b"emergo checkpoint 0\n")
        np.savez(file, meta=np.frombuffer(meta, np.uint8))
    (unit / "b.npz").write_bytes(b"damaged")
    said = call(capsys, "show", folder.path)[1].splitlines()
    assert said == [
        "study: 0 of 2 runs are finished",
        "2 runs in checkpoints, at steps 1,000 to 2,000",
    ]


@pytest.mark.usefixtures("quick")
def test_failed_runs_can_be_trained_again(capsys, tmp_path, file, monkeypatch):
    out = tmp_path / "out"

    def fails(runs, **options):
        raise MemoryError("no room")

    monkeypatch.setattr("emergo.study.executor.train", fails)
    status, said, err = call(capsys, "run", file, "--out", out)
    assert (status, "12 failed" in said) == (1, True)
    why = "12 runs failed: out of memory with 1 together: no room"
    assert f"{why}; emergo study run" in said
    assert why in call(capsys, "status", out)[1]
    status, said, _ = call(capsys, "run", out, "--json")
    assert (status, json.loads(said)["reasons"]) == (
        1,
        {"out of memory with 1 together: no room": 12},
    )
    assert "out of memory" in err
    monkeypatch.setattr("emergo.study.executor.train", fake_train)
    status, said, err = call(capsys, "run", file, "--out", out, "--retry-failed")
    assert "12 failed runs are trained again" in err
    assert "8 reached, 4 censored, 0 failed" in said


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_pass_a_dry_run(capsys, tmp_path, path):
    place = "slurm" if path.stem == "slurm" else "local"
    status, said, err = call(
        capsys, "run", path, "--out", tmp_path / "out", "--dry-run", "--on", place
    )
    imports = (
        "emergo: imports own_task.py, because the study asks for it\n"
        if path.stem == "own_task"
        else ""
    )
    assert (status, err) == (0, imports)
    for words in ("runs", "units", "at once", "memory", "at most about"):
        assert words in said
    status, said, _ = call(capsys, "run", path, "--dry-run", "--json", "--on", place)
    expected = json.loads(said)
    assert expected["runs"] == sum(group["runs"] for group in expected["groups"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Expected one of"),
        (("rum",), "unknown command 'rum'; did you mean run?"),
        (("run",), "A study file (TOML)"),
        (("run", "{tmp}/none.toml", "--out", "{tmp}/new"), "none.toml: no such file"),
        (("run", "{tmp}/good.toml"), "name the folder that keeps the study: --out DIR"),
        (
            ("run", "{tmp}/bad.toml", "--out", "{tmp}/new"),
            "bad.toml: unknown key of the study 'sedes'; did you mean seeds?",
        ),
        (("run", "{tmp}/good.toml", "--out", "{tmp}/file"), "cannot write to this folder"),
        (("run", "{tmp}/good.toml", "--out", "{tmp}/new", "--on", "slrum"), "did you mean slurm?"),
        (
            ("run", "{tmp}/good.toml", "--out", "{tmp}/new", "--n-parallel", "0"),
            "--n-parallel must be positive, got 0",
        ),
        (("run", "{tmp}"), "no study here"),
        (("run", "{tmp}", "--out", "{tmp}/new"), "a folder, not a study file"),
        (
            ("run", "{tmp}/begun", "--out", "{tmp}/new"),
            "is a folder, not a study file; leave out --out",
        ),
        (
            ("run", "{tmp}/tf32.toml", "--out", "{tmp}/new"),
            "tf32 products need a GPU; on a CPU choose precision fp32",
        ),
        (("status", "{tmp}"), "no study here; a study is put into a folder by running it"),
        (("status", "{tmp}/file"), "a file, not the folder of a study"),
        (("export", "{tmp}/begun", "--to", "{tmp}/t.csv"), "no run is finished yet"),
        (
            ("export", "{tmp}/begun", "--to", "{tmp}/t.csv", "--curves", "{tmp}/begun/../t.csv"),
            "are the same file",
        ),
        (("grow", "{tmp}/begun"), "name what to add"),
        (("grow", "{tmp}/begun", "--axis", "dim"), "write axis=value,value, e.g. dim=32,64"),
        (
            ("grow", "{tmp}/begun", "--axis", "dmi=4"),
            "unknown axis of this study 'dmi'; did you mean dim?",
        ),
        (("grow", "{tmp}/begun", "--axis", "dim=4.5"), "dim must be a whole number"),
        (
            ("grow", "{tmp}/two/begun", "--seeds", "5"),
            "holds several studies; add --study ",
        ),
        (("show", "{tmp}/two/begun", "--study", "oen"), "did you mean one or other?"),
        (("grow", "{tmp}/begun", "--seeds", "0"), "seeds must be a number of seeds"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_one_line_and_status_2(capsys, tmp_path, arguments, words):
    (tmp_path / "file").write_text("")
    study().write_file(tmp_path / "good.toml")
    (tmp_path / "bad.toml").write_text("sedes = 3\n")
    study(precision="tf32").write_file(tmp_path / "tf32.toml")
    begin(tmp_path, study())
    begin(tmp_path / "two", study(name="one"), study(name="other", grid={"burst": [2, 3]}))
    before = sorted(os.listdir(tmp_path))
    status, out, err = call(capsys, *(a.format(tmp=tmp_path) for a in arguments))
    assert (status, out) == (2, "")
    assert err.startswith("emergo: ")
    assert err.count("\n") == 1
    assert words in err
    assert sorted(os.listdir(tmp_path)) == before


def test_without_slurm_the_option_is_an_error(capsys, tmp_path, file, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, err = call(capsys, "run", file, "--out", tmp_path / "out", "--on", "slurm")
    assert status == 2
    assert err.startswith("emergo: there is no Slurm here (no sbatch on the PATH)")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_exports_of_runs_on_a_cluster_are_refused(capsys, tmp_path, file):
    words = ("--out", tmp_path / "out", "--on", "slurm", "--log", "tensorboard")
    status, _, err = call(capsys, "run", file, *words)
    assert status == 2
    assert "with --on slurm leave it out" in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("quick")
def test_curves_are_exported_for_tensorboard(capsys, tmp_path, file):
    """Also of runs that were finished before."""
    out = tmp_path / "out"
    assert call(capsys, "run", file, "--out", out)[0] == 0
    assert call(capsys, "run", file, "--out", out, "--log", "tensorboard")[0] == 0
    exported = {file.parent.name for file in (out / "tensorboard").glob("*/events*")}
    assert exported == {folder.name for folder in (out / "runs").iterdir() if folder.is_dir()}
