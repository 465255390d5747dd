"""What holds for runs on every task."""

import json

import numpy as np
import pytest

from emergo.engine import train
from emergo.studies import run_from_json
from emergo.studies._result import run_json


def check_going_on(histories, steps, folder):
    """A call that is interrupted after so many steps and made again ends bit for bit as the uninterrupted one."""

    def stop(now):
        if now.steps >= steps:
            raise KeyboardInterrupt

    runs = [history.run for history in histories]
    with pytest.raises(KeyboardInterrupt):
        train(runs, checkpoint=folder, checkpoint_seconds=0, progress=stop)
    for one, two in zip(train(runs, checkpoint=folder), histories, strict=True):
        assert set(one.curves) == set(two.curves)
        for name, values in one.curves.items():
            assert np.array_equal(values, two.curves[name], equal_nan=True), name


def check_records(records, results):
    """Records give back the curves of these results, and plain data the runs."""
    for result in results:
        assert run_from_json(json.loads(json.dumps(run_json(result.run)))) == result.run
        found = records.read(result.run)
        assert found.curves is not None
        assert result.curves is not None
        assert set(found.curves) == set(result.curves)
        for name, values in result.curves.items():
            np.testing.assert_allclose(found.curves[name], values)
