"""`emergo theory`."""

import json

from .command import call


def test_theory_prints_one_json_object(capsys):
    status, out, err = call(capsys, "theory", "--length", "64", "--dim", "16", "--burst", "2", "--flow", "exact", "--json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert {"plateau", "censored", "rate", "predicted", "escape_linear"} <= set(found)
    assert found["plateau"] > 0


def test_theory_for_people(capsys):
    status, out, _ = call(capsys, "theory", "--length", "64", "--dim", "16")
    assert status == 0
    assert "plateau" in out


def test_a_cell_that_does_not_get_there_is_censored_and_not_an_error(capsys):
    status, out, _ = call(capsys, "theory", "--length", "64", "--dim", "16", "--horizon", "5", "--json")
    assert status == 0
    assert json.loads(out)["censored"] is True
