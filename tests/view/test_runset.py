"""Test sets of runs: columns, axes, and the names of curves."""

import numpy as np

from emergo.view._runset import RunSet, columns_of, varied


class InMemory:
    """Curves of one run."""

    def __init__(self, **curves):
        self.curves = {name: np.asarray(values, float) for name, values in curves.items()}

    def read(self, identity, names=None):
        wanted = ("step", *(self.curves if names is None else names))
        return {name: values for name, values in self.curves.items() if name in wanted}

    def stamp(self, identity):
        return 0


def runs_with(curves, **columns):
    columns = {"identity": ["a"]} | columns
    return RunSet("set", "runs", "1", [], columns, curves, lambda identity: {})


def test_columns_that_differ_and_are_not_outcomes_are_axes():
    first = {"identity": "a", "dim": 4, "seed": 0, "plateau": 1.0}
    columns = columns_of([first, {"identity": "b", "dim": 8, "seed": 1}])
    assert columns == {
        "identity": ["a", "b"],
        "dim": [4, 8],
        "seed": [0, 1],
        "plateau": [1.0, None],
    }
    assert varied(columns) == ["dim"]


def test_the_curve_of_several_heads_is_the_largest():
    runs = runs_with(
        InMemory(step=[0, 1], loss=[3, 2], attention_0_0=[0.1, np.nan], attention_0_1=[0.2, 0.3])
    )
    assert runs.families() == {"loss": [[]], "attention": [[0, 0], [0, 1]]}
    np.testing.assert_array_equal(runs.curve("a", "attention"), [[0, 1], [0.2, 0.3]])
    assert runs.curve("a", "none")[0].size == 0


def test_a_table_lists_constants_once_and_has_finite_numbers_only():
    runs = runs_with(InMemory(step=[0]), plateau=[np.inf], dim=[4], run=["{}"])
    assert runs.table() == {
        "version": "1",
        "columns": {"identity": ["a"], "plateau": [None]},
        "constants": {"dim": 4},
    }


def test_a_table_of_censored_runs_alone_says_so_for_every_run():
    ends = {"identity": ["a", "b"], "state": ["censored"] * 2, "plateau": [400.0, 400.0]}
    assert runs_with({}, **ends, censored=[True, True]).table()["columns"]["censored"] == [True] * 2
    reached = runs_with({}, **ends, censored=[False, False]).table()
    assert reached["constants"] == {"censored": False}
