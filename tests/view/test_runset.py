"""Sets of runs: columns, axes, and the names of curves."""

import numpy as np

from emergo.view._runset import RunSet, columns_of, varied

from .made_up import HEADS


class InMemory:
    """Curves of one run."""

    def __init__(self, **curves):
        self.held = {name: np.asarray(values, float) for name, values in curves.items()}

    def names(self, identity):
        return [name for name in self.held if name != "step"]

    def read(self, identity, names=None):
        return {name: values for name, values in self.held.items() if names is None or name in ("step", *names)}

    def stamp(self, identity):
        return 0


def runs_with(curves, **columns):
    return RunSet("set", "runs", "1", [], {"identity": ["a"], **columns}, curves, lambda identity: {})


def test_rows_become_columns_and_what_differs_is_an_axis():
    columns = columns_of([{"identity": "a", "dim": 4, "seed": 0, "plateau": 1.0}, {"identity": "b", "dim": 8, "seed": 1}])
    assert columns == {"identity": ["a", "b"], "dim": [4, 8], "seed": [0, 1], "plateau": [1.0, None]}
    assert varied(columns) == ["dim"]


def test_curves_of_heads_are_one_family_and_the_largest_is_shown():
    runs = runs_with(InMemory(step=[0, 1], loss=[3, 2], attention_0_0=[0.1, np.nan], attention_0_1=[0.2, 0.3]))
    assert runs.families() == {"loss": [[]], "attention": [[0, 0], [0, 1]]}
    np.testing.assert_array_equal(runs.curve("a", "attention"), [[0, 1], [0.2, 0.3]])
    assert runs.curve("a", "none")[0].size == 0


def test_a_table_has_constants_once_and_no_number_that_json_lacks():
    runs = runs_with(InMemory(step=[0]), plateau=[np.inf], dim=[4], run=["{}"])
    assert runs.table() == {"version": "1", "columns": {"identity": ["a"], "plateau": [None]}, "constants": {"dim": 4}}


def test_a_stored_study_has_its_heads(catalog):
    (runs,) = catalog.sets().values()
    assert len(runs.families()["attention"]) == HEADS[0] * HEADS[1]
