"""Figures whose runs several processes train: what is planned when, each run once, and what becomes of failures."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pandas as pd
import pytest

from emergo._errors import InputError
from emergo.engine import Result
from emergo.papers import FIGURES, Figure, make_figure, source_for
from emergo.papers import _make as module
from emergo.papers import _together as together
from emergo.papers._make import make_figures
from emergo.papers._source import distinct
from emergo.papers._together import Wishes, train_figures
from emergo.studies import Executor, Plan, StudyFolder, Watcher, read_outcomes
from emergo.studies import _executor as executor
from emergo.studies._worker import longest
from tests.studies.crowd import made_up, study

FIG3, FIG5, FIG16 = (FIGURES[f"zucchet2025/fig{n}"] for n in (3, 5, 16))


def never_made(settings, source):
    raise AssertionError


def figure(id, first, followup=None):
    return Figure(id, "a figure", {"paper": first, "smoke": first}, never_made, {"paper": 1}, followup)


def second_round(settings, source):
    """More seeds, once the first is there; and of these more, once all are."""
    more = {"second": study(3, 3)}
    if source.missing(distinct(more)):
        return more
    runs = distinct_seeds(source.runs(more))
    return more | ({"third": study(3, 5)} if runs == 3 else {})


def distinct_seeds(parts):
    return len({result.run.seed for part in parts.values() for result in part})


CHAIN = figure("test/chain", {"first": study(3, 1)}, second_round)
PLAIN = figure("test/plain", {"all": study(4, 2)})


@dataclasses.dataclass
class Threads:
    """Stands for the processes: threads, and the engine is a stand-in too."""

    folder: StudyFolder
    plan: Plan
    workers: int
    seconds: float | None
    say: object

    def __enter__(self):
        self.told = threading.Event()
        options = {"wait": False, "growing": lambda: not self.told.is_set(), "rank": longest, "beat": 0.01}
        made = [Executor(self.folder, [self.plan.key], share=(n, self.workers), **options) for n in range(self.workers)]
        self.threads = [threading.Thread(target=each.run) for each in made]
        for thread in self.threads:
            thread.start()
        return self

    def at_work(self):
        return any(thread.is_alive() for thread in self.threads)

    def end(self):
        self.told.set()

    def __exit__(self, *_):
        for thread in self.threads:
            thread.join(20)


class Noting(Watcher):
    def __init__(self):
        self.begun, self.results, self.progress = [], [], []

    def begin(self, runs, finished=dict, columns=None):
        self.begun.append((len(runs), len(finished()), columns))

    def ended(self, result):
        self.results.append(result.run.identity)

    def training(self, now):
        self.progress.append(now)


@pytest.fixture
def trained(monkeypatch):
    """How often each run was trained."""
    counts = Counter()

    def train(runs, *, on_end, **_):
        counts.update(run.identity for run in runs)
        for run in runs:
            on_end(made_up(run))

    monkeypatch.setattr(executor, "train", train)
    monkeypatch.setattr(together, "Workers", Threads)
    monkeypatch.setattr(together, "LOOK", 0.01)
    monkeypatch.setattr(together, "SHOW", 0.0)
    return counts


def train_here(figures, folder, show=None, **options):
    train_figures(figures, "smoke", folder, 2, fresh=True, show=show or Watcher(), say=print, **options)


def test_all_that_figures_want_is_trained_once_with_what_follows_from_it(tmp_path, trained):
    show = Noting()
    train_here([CHAIN, PLAIN], tmp_path, show)
    wanted = {run.identity for run in [*study(3, 5).runs, *study(4, 2).runs]}
    assert trained == dict.fromkeys(wanted, 1)
    assert show.begun[0][:2] == (8, 0)
    assert show.begun[-1][0] == len(wanted)
    assert Counter(show.begun[-1][2]["figure"]) == {"test/chain": 12, "test/plain": 5}, "by who wanted it first"
    folder = StudyFolder(tmp_path)
    [plan] = folder.read()
    assert (plan.name, plan.plugins) == ("test/chain and 1 more", ["emergo.papers"])
    trained.clear()
    train_here([CHAIN, PLAIN], tmp_path)
    assert not trained, "all is there"
    assert len(folder.read()) == 1


def test_the_same_call_later_finds_the_same_units(tmp_path, trained, monkeypatch):
    """So that checkpoints of an interrupted one serve; also where some of their runs are finished."""
    plans, stop = [], threading.Event()

    class Stopped(Threads):
        def at_work(self):
            plans.append(self.folder.read())
            raise KeyboardInterrupt

        def __exit__(self, *_):
            self.end()
            stop.set()
            super().__exit__()

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(together, "Workers", Stopped)
        train_here([CHAIN, PLAIN], tmp_path)
    before = {unit.id for plan in plans[0] for unit in plan.units}
    train_here([CHAIN, PLAIN], tmp_path)
    [plan] = StudyFolder(tmp_path).read()
    assert before < {unit.id for unit in plan.units}
    assert set(trained.values()) == {1}


def test_a_damaged_run_is_trained_again_and_stops_nobody(tmp_path, trained):
    train_here([PLAIN], tmp_path)
    first = study(4, 2).runs[1].identity
    (tmp_path / "runs" / first / "curves.parquet").write_bytes(b"PAR1")
    show = Noting()
    train_here([PLAIN, CHAIN], tmp_path, show)
    assert trained[first] == 2
    assert show.begun[0][:2] == (11, 7)
    sources = [source_for(PLAIN, tmp_path, fresh=True, partial=True)]
    assert sources[0].missing(PLAIN.runs("smoke")) == []


def test_a_run_that_fails_is_finished(tmp_path, trained, monkeypatch):
    """What follows from it is asked for as well: nobody waits for it for ever."""

    def fails(runs, *, on_end, **_):
        trained.update(run.identity for run in runs)
        for run in runs:
            on_end(made_up(run) if run.seed else Result.untrained(run, "it is broken", "cpu"))

    monkeypatch.setattr(executor, "train", fails)
    train_here([CHAIN], tmp_path)
    states = Counter(row["state"] for row in read_outcomes(StudyFolder(tmp_path).runs).rows.values())
    assert states["failed"] == 3
    assert sum(states.values()) == 15


def test_nobody_waits_for_one_figure_while_another_has_something(tmp_path, trained, monkeypatch):
    """The first round of one figure lasts until all runs of the other are trained."""
    long = {"steps": 900, "batch": 4}  # another program
    others, train = threading.Event(), executor.train
    plain = {run.identity for run in study(4, 2).runs}

    def one_is_long(runs, **options):
        if runs[0].config.steps == 900:
            assert others.wait(20)
        train(runs, **options)
        if plain <= trained.keys():
            others.set()

    monkeypatch.setattr(executor, "train", one_is_long)
    follows = figure("test/long", {"first": study(1, 1, **long)}, lambda settings, source: {"then": study(1, 2, **long)})
    train_here([follows, PLAIN], tmp_path)
    assert trained == dict.fromkeys(plain | {run.identity for run in study(1, 2, **long).runs}, 1)


def test_of_figures_that_share_runs_each_is_wanted_once(tmp_path):
    sources = [source_for(figure, tmp_path, fresh=True, partial=True) for figure in (FIG5, FIG16)]
    wishes = Wishes([FIG5, FIG16], "smoke", sources)
    assert wishes.grow(set(), ask_all=True)
    assert set(wishes.runs) == {run.identity for run in FIG5.runs("smoke")}
    assert set(wishes.figure_of.values()) == {FIG5.id}
    assert not wishes.grow(set(wishes.runs))


def test_where_nothing_is_to_be_trained_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(together, "Workers", None)
    train_here([], tmp_path)
    train_here([FIGURES["zucchet2025/fig1"]], tmp_path)  # has no runs
    recorded = {"fresh": False, "show": Watcher(), "say": print}
    train_figures([FIG3], "paper", tmp_path, 2, **recorded)
    assert not (tmp_path / "studies").exists()


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2"])
def test_workers_are_counted(workers, tmp_path):
    with pytest.raises(InputError, match=r"^workers must be a whole number of at least 1, got"):
        make_figures([FIG3.id], "smoke", tmp_path, workers=workers)


def test_what_workers_did_not_get_to_is_not_trained_while_drawing(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "train_figures", lambda *given, **options: calls.append((given[3], options["seconds"])))
    monkeypatch.setattr(module, "run_figure", lambda *given, partial, **_: calls.append(partial) or {"figure": "drawn"})
    more = {"fresh": True, "workers": 2}
    [report] = make_figures([FIG3.id], "smoke", tmp_path, seconds=5.0, **more)
    assert (report["finished"], calls) == (0, [(2, 5.0)])
    assert make_figures([FIG3.id], "smoke", tmp_path, seconds=5.0, partial=True, **more) == [{"figure": "drawn"}]
    assert calls == [(2, 5.0)] * 2 + [True]
    make_figures([FIG3.id], "smoke", tmp_path, partial=True, **more)
    assert calls[3:] == [True], "without seconds a partial figure trains nothing"


def command(tmp_path, *words):
    return [sys.executable, "-m", "emergo.papers", *words, "--fresh", "--workers", "2", "--out", str(tmp_path)]


@pytest.mark.slow
def test_two_processes_train_what_one_does_bit_for_bit(tmp_path):
    """Each unit is the same. And the process that plans asks JAX for no device."""
    script = """
import jax._src.xla_bridge as bridge
from emergo.papers import _together as together

class Checked(together.Workers):
    def __exit__(self, *error):
        super().__exit__(*error)
        assert not bridge._backends

together.Workers = Checked
from emergo.papers.__main__ import main
main()
"""
    words = command(tmp_path / "two", FIG3.id, "--preset", "smoke", "--json")[3:]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    [report] = json.loads(done.stdout)["figures"]
    assert report["figure"] == FIG3.id
    made = make_figure(FIG3, "smoke", source_for(FIG3, tmp_path / "one", fresh=True))
    names = sorted(os.listdir(tmp_path / "one" / "runs"))
    assert [name for name in names if not name.startswith(".")] == sorted(run.identity for run in FIG3.runs("smoke"))
    for run in FIG3.runs("smoke"):
        one, two = (pd.read_parquet(tmp_path / n / "runs" / run.identity / "curves.parquet") for n in ("one", "two"))
        pd.testing.assert_frame_equal(one, two, check_exact=True)
    assert report["laws"] == made.laws


@pytest.mark.slow
@pytest.mark.parametrize("what", ["interrupt", "kill"])
def test_an_interrupt_or_a_killed_worker_is_one_line_and_nothing_is_lost(tmp_path, what):
    folder = StudyFolder(tmp_path)
    words = command(tmp_path, "zucchet2025/fig15", "--preset", "laptop")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until, claims = time.monotonic() + 200, {}
    while len([claim for claim in claims.values() if claim.get("progress")]) < 2:
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.1)
        claims = {path: json.loads(path.read_text()) for path in folder.claims.glob("*.json") if path.stem != "plan"}
    pids = {claim["pid"] for claim in claims.values()}
    assert len(pids) == 2
    if what == "interrupt":
        process.send_signal(signal.SIGINT)
    else:
        os.kill(min(pids), signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    last = err.splitlines()[-1]
    assert out == ""
    if what == "interrupt":
        assert process.returncode == 130
        assert last == f"emergo: interrupted; runs that ended are kept in {tmp_path / 'runs'}; the same command goes on"
    else:
        assert process.returncode == 1
        assert "of 2 was ended by SIGKILL; what was finished is kept, and the same command goes on" in last
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    saved = {path.parent.name.partition(".")[0] for path in folder.checkpoints.glob("*/*.npz")}
    assert {path.stem for path, claim in claims.items() if what == "interrupt" or claim["pid"] != min(pids)} <= saved
