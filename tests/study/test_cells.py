"""Summaries of cells, wherever they are shown."""

import io

import pandas as pd
import pytest
from rich.console import Console

from emergo.cli import main
from emergo.store import Store, StudyFolder
from emergo.study import Runs, cell_summary, live_progress
from emergo.study.results import write_result
from emergo.training import Progress, Result

from .crowd import made_up, study


def table(rows):
    """Return a table of runs from (dim, plateau, state)."""
    frame = pd.DataFrame(rows, columns=["dim", "plateau", "state"])
    return frame.assign(censored=frame["state"] == "censored")


def test_cells_sum_up_their_runs():
    some = [(4, 100, "reached"), (4, 60, "reached"), (4, 80, "reached"), (4, 200, "censored")]
    failed = [(2, float("nan"), "failed")] * 2
    planned = [(4,)] * 5 + [(2,)] * 2 + [(8,)]
    without, four = cell_summary(table([*some, *failed]), ["dim"], planned)
    counts = {"planned": 2, "runs": 2, "censored": 0, "failed": 2, "bound": False}
    nothing = dict.fromkeys(("plateau", "plateau_min", "plateau_max"))
    assert without == {"dim": 2} | counts | nothing
    counts = {"planned": 5, "runs": 4, "censored": 1, "failed": 0, "bound": False}
    assert four == {"dim": 4} | counts | {"plateau": 90, "plateau_min": 60, "plateau_max": 200}
    assert cell_summary(table([]), ["dim"]) == []
    [whole] = cell_summary(table(some), [])
    assert whole["runs"] == 4


@pytest.mark.parametrize(("censored", "bound"), [(0, False), (1, False), (2, True), (3, True)])
def test_the_median_is_a_bound_once_half_of_the_runs_are_censored(censored, bound):
    rows = [(4, 200, "censored") if i < censored else (4, 100, "reached") for i in range(4)]
    [cell] = cell_summary(table(rows), ["dim"])
    assert cell["bound"] is bound


def test_all_displays_agree_that_a_median_is_a_bound(tmp_path, capsys):
    """One reached, one censored and one failed run: the failed one does not count."""
    made = study(1, 3, name="bound")
    results = [made_up(run) for run in made.runs[:2]]
    results.append(Result.untrained(made.runs[2], "no memory", "cpu"))
    assert [result.state for result in results] == ["censored", "reached", "failed"]
    median = f">{sum(result.plateau.time for result in results[:2]) / 2:.0f}"

    assert median in repr(Runs(results, made.axes, made.values_of)).splitlines()[-1].split()
    assert median in repr(Runs(results)).splitlines()[-1].split()

    screen = io.StringIO()
    with live_progress(Console(file=screen, force_terminal=True, width=100)) as watch:
        watch.begin(made.runs)
        for result in results:
            watch.ended(result)
        watch.training(Progress(3, 3, 1, [], 10, 1.0, None, 1))
    assert median in screen.getvalue().split()

    folder = tmp_path / "out"
    made.open(StudyFolder(folder))
    for result in results:
        write_result(Store(folder / "runs"), result)
    main(["study", "show", str(folder)])
    assert median in capsys.readouterr().out.split()
