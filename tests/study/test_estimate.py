"""Estimates of the cost of a study."""

import json
from typing import Any

import jax
import numpy as np
import pytest

from emergo.core.contract import Batch
from emergo.models import Transformer
from emergo.study import Study, estimate

from ..training.own import Sums
from .test_study import OBJECT


class Corpus(Sums):
    def data(self):
        inputs: Any = np.zeros((10**6, 2), np.int32)
        return Batch(inputs, np.zeros((10**6, 1), np.float32))


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


def test_an_estimate_includes_compilation_and_the_data_that_runs_share():
    model = Transformer(layers=1, heads=1, width=4)
    small = Study(Sums(), model, seeds=4, steps=1, n_test=16, precision="fp32")
    compilation = estimate(small).seconds
    assert compilation > 2 * estimate(small.replace(steps=2)).seconds / 3 > 1
    # Another unit uses the same program.
    assert estimate(small.replace(unit=1)).seconds == compilation
    large = small.replace(task=Corpus(), n_train=84)
    copies = 2 if jax.default_backend() == "cpu" else 1  # the task's arrays and JAX's
    corpus = 12 * 10**6
    gained = estimate(large).bytes - estimate(small).bytes
    assert gained == pytest.approx(copies * corpus, rel=0.01)
