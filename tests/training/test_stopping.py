"""Stopping rules: any schedule, and early stopping."""

import numpy as np
import pytest

from emergo.core.errors import InputError

from .own import BASE, run_of
from .untyped import EarlyStopping, Run, Switch, When, train


def waited(values, patience, tolerance=0.0, best="low"):
    """Return the number of values after which the rule ends a run, or None."""
    rule = EarlyStopping("loss", patience=patience, tolerance=tolerance, best=best)
    state = rule.start()
    for count, value in enumerate(values, 1):
        state = rule.update(state, {"loss": np.float32(value)})
        if rule.value(0, state) > 0:
            return count
    return None


def test_early_stopping_waits_for_the_best_value():
    assert waited([3, 2, 2.5, 1, 2, 2, 2], patience=3) == 7
    assert waited([3, 2, 1, 0.5], patience=2) is None
    assert waited([1, 0.99, 0.98, 0.97], patience=3, tolerance=0.1) == 4
    assert waited([0.1, 0.5, 0.4, 0.3], patience=2, best="high") == 4
    assert waited([2, np.nan, np.nan], patience=2) == 3


RULES = {
    "none": None,
    "early": EarlyStopping("error", patience=2, tolerance=0.5),
    "when": When("attention_0_1", above=0.0, before=0.0, after=1.0),
    "switch": Switch(0.0, 1.0, at=8),
}


@pytest.fixture(scope="module")
def results():
    """Runs with different rules, several in one program."""
    runs = [Run(BASE.replace(stop=rule, steps=60), 0) for rule in RULES.values()]
    return dict(zip(RULES, train([*runs, run_of(stop=RULES["early"], steps=15)]), strict=False))


def test_each_run_ends_by_its_own_rule(results):
    steps = {name: result.steps for name, result in results.items()}
    assert steps["none"] == 60
    assert steps["when"] == 0
    assert steps["switch"] == 10  # the first evaluation from step 8 on
    errors = results["none"].curves["error"]
    count = waited(errors, 2, 0.5)
    assert count is not None
    assert steps["early"] == results["none"].curves["step"][count - 1] < 60
    kept = results["early"].curves["error"]
    np.testing.assert_allclose(kept, errors[:count], rtol=1e-4)
    assert results["early"].reason == "stopped by EarlyStopping"
    assert results["early"].state == "trained"
    assert results["none"].reason is None


def test_wrong_rules_are_refused():
    with pytest.raises(InputError, match=r"Config.stop must be a Schedule, got 3"):
        run_of(stop=3)
    with pytest.raises(InputError, match="unknown metric of EarlyStopping 'eror'; did you mean er"):
        train([run_of(stop=EarlyStopping("eror"))])
