"""Estimates of the cost of a study."""

import json

import pytest

from emergo.study import estimate

from .test_study import OBJECT


def test_an_estimate_adds_up():
    expected = estimate(OBJECT)
    assert sum(group.runs for group in expected.groups) == OBJECT.count
    assert len(expected.groups) == 2
    seconds = sum(group.seconds for group in expected.groups) / expected.devices
    assert expected.seconds == pytest.approx(seconds)
    assert expected.bytes == max(group.bytes for group in expected.groups) > 0
    names = [run.identity for run in OBJECT.runs]
    assert sum(group.runs for group in estimate(OBJECT, frozenset(names[:16])).groups) == 16
    assert estimate(OBJECT, frozenset(names)).groups == []
    assert estimate(OBJECT.replace(steps=2000)).seconds > expected.seconds
    assert json.loads(json.dumps(expected.data()))["seconds"] == expected.seconds
