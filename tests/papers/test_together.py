"""Runs of several figures trained in several processes: one plan, and each run once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pandas as pd
import pytest

from emergo.core.errors import InputError
from emergo.papers import FIGURES, Figure, make_figure, make_figures, source_for
from emergo.papers._figure import Presets
from emergo.papers._source import distinct
from emergo.papers._together import FigureDemand
from emergo.store import Store, StudyFolder
from emergo.study.results import write_result
from emergo.training import Result
from tests.study.crowd import made_up, study

FIG3, FIG5, FIG16 = (FIGURES[f"zucchet2025/fig{n}"] for n in (3, 5, 16))


def never_made(settings, source):
    raise AssertionError


def figure(id, first, followup=None):
    presets: Presets = {"paper": first, "smoke": first}
    return Figure(id, "a figure", presets, never_made, {"paper": 1}, followup)


def second_round(settings, source):
    """Need more seeds once the first exists, and again more once those exist."""
    more = {"second": study(3, 3)}
    if source.missing(distinct(more)):
        return more
    return more | {"third": study(3, 5)}


CHAIN = figure("test/chain", {"first": study(3, 1)}, second_round)
PLAIN = figure("test/plain", {"all": study(4, 2)})


@pytest.fixture
def demand(tmp_path):
    """Return a function that builds the demand of figures from the folder."""

    def build(*figures):
        sources = [source_for(each, tmp_path, fresh=True, partial=True) for each in figures]
        return FigureDemand(figures, "smoke", sources)

    return build


def finish(folder, demand, make=made_up):
    """Store results of all runs that figures need so far; return all finished runs."""
    store = Store(StudyFolder(folder).runs)
    StudyFolder(folder).prepare()
    for identity, run in demand.runs.items():
        if identity not in store:
            write_result(store, make(run))
    return set(demand.runs)


def identities(*studies):
    return {run.identity for each in studies for run in each.runs}


def test_runs_are_planned_once_as_soon_as_they_are_known(tmp_path, demand):
    needed = demand(CHAIN, PLAIN)
    assert needed.grow(set(), ask_all=True)
    assert needed.runs.keys() == identities(study(3, 1), study(4, 2))
    finished = finish(tmp_path, needed)
    assert needed.grow(finished)
    assert needed.runs.keys() == identities(study(3, 3), study(4, 2))
    assert needed.grow(finish(tmp_path, needed))
    assert needed.runs.keys() == identities(study(3, 5), study(4, 2))
    assert not needed.grow(finish(tmp_path, needed), ask_all=True)
    assert Counter(needed.figure_of.values()) == {"test/chain": 12, "test/plain": 5}
    # The same call later plans the same runs at once, so that it finds the same units.
    again = demand(CHAIN, PLAIN)
    again.grow(set(), ask_all=True)
    assert again.runs.keys() == needed.runs.keys()


def test_failed_runs_count_as_finished(tmp_path, demand):
    """Runs that follow from them are needed as well."""
    needed = demand(CHAIN)
    needed.grow(set(), ask_all=True)
    finish(tmp_path, needed, lambda run: Result.untrained(run, "it is broken", "cpu"))
    assert needed.grow(set(needed.runs))
    assert needed.runs.keys() == identities(study(3, 3))


def test_runs_that_figures_share_are_needed_once(demand):
    needed = demand(FIG5, FIG16)
    assert needed.grow(set(), ask_all=True)
    assert set(needed.runs) == {run.identity for run in FIG5.runs("smoke")}
    assert set(needed.figure_of.values()) == {FIG5.id}
    assert not needed.grow(set(needed.runs))


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2"])
def test_the_number_of_workers_is_a_positive_whole_number(workers, tmp_path):
    with pytest.raises(InputError, match=r"^workers must be a whole number of at least 1, got"):
        make_figures([FIG3.id], "smoke", tmp_path, workers=workers)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_without_runs_to_train_no_worker_is_started(tmp_path):
    ids = ["zucchet2025/fig6", "zucchet2025/fig15"]  # without runs, and with recorded runs
    made = make_figures(ids, "paper", tmp_path, workers=2)
    assert [report["figure"] for report in made] == ids
    assert not (tmp_path / "studies").exists()


@pytest.mark.slow
def test_this_process_does_not_train_what_workers_left(tmp_path):
    [report] = make_figures([FIG3.id], "smoke", tmp_path, seconds=0.1, fresh=True, workers=2)
    assert report["finished"] < report["runs"] == 16
    assert not (tmp_path / f"{FIG3.id}.json").exists()


def command(out, *words):
    options = ["--fresh", "--yes", "--workers", "2", "--out", str(out)]
    return [sys.executable, "-m", "emergo", "figure", *words, *options]


# The process that plans must not reserve memory of a GPU.
WITHOUT_DEVICES = """
import sys
from emergo.papers import make_figures, _make
from jax._src.xla_bridge import backends_are_initialized

train_figures = _make.train_figures

def checked(*given, **options):
    train_figures(*given, **options)
    assert not backends_are_initialized()

_make.train_figures = checked
make_figures([sys.argv[1]], "smoke", sys.argv[2], fresh=True, workers=2)
"""


@pytest.mark.slow
def test_two_processes_give_the_same_numbers_bit_for_bit(tmp_path):
    words = [sys.executable, "-c", WITHOUT_DEVICES, FIG3.id, str(tmp_path / "two")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    made = make_figure(FIG3, "smoke", source_for(FIG3, tmp_path / "one", fresh=True))
    report = json.loads((tmp_path / "two" / f"{FIG3.id}.json").read_text())
    assert report["laws"] == made.laws
    runs = FIG3.runs("smoke")
    names = [name for name in os.listdir(tmp_path / "one" / "runs") if not name.startswith(".")]
    assert sorted(names) == sorted(run.identity for run in runs)
    for run in runs:
        one, two = (
            pd.read_parquet(tmp_path / n / "runs" / run.identity / "curves.parquet")
            for n in ("one", "two")
        )
        pd.testing.assert_frame_equal(one, two, check_exact=True)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["interrupt", "kill"])
def test_an_interrupt_or_a_killed_worker_prints_one_line_and_loses_nothing(tmp_path, what):
    folder = StudyFolder(tmp_path)
    words = command(tmp_path, "zucchet2025/fig15", "--preset", "laptop")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    claims = wait_for_claims(process, folder)
    pids = {claim["pid"] for claim in claims.values()}
    assert len(pids) == 2
    killed = None
    if what == "interrupt":
        process.send_signal(signal.SIGINT)
        status = 130
        words = f"interrupted; runs that ended are kept in {tmp_path / 'runs'}; the same command"
    else:
        killed = min(pids)
        os.kill(killed, signal.SIGKILL)
        status = 1
        words = "of 2 was ended by SIGKILL; what was finished is kept, and the same command"
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (status, "")
    assert f"{words} goes on" in err.splitlines()[-1]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    saved = {path.parent.name.partition(".")[0] for path in folder.checkpoints.glob("*/*.npz")}
    assert {path.stem for path, claim in claims.items() if claim["pid"] != killed} <= saved


def wait_for_claims(process, folder):
    """Wait until both workers report progress; return their claims by file."""
    deadline = time.monotonic() + 200
    claims = {}
    while len([claim for claim in claims.values() if claim.get("progress")]) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
        claims = {
            path: json.loads(path.read_text())
            for path in folder.claims.glob("*.json")
            if path.stem != "plan"
        }
    return claims
