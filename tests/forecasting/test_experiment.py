"""The experiment emergo/forecast: calibration and judged runs, outcomes and measures."""

import json

import pytest

from emergo.forecasting.experiment._moments import (
    CALIBRATION,
    JUDGED,
    content,
)
from emergo.measure import read_table


@pytest.mark.skipif(not JUDGED.exists(), reason="the judged runs are being trained")
def test_calibration_and_judged_runs_are_disjoint():
    jobs = []
    contents = []
    for path in (CALIBRATION, JUDGED):
        logs = [log for _, log in read_table(path).groupby("run", sort=False)]
        jobs.append([json.loads(log["job"].iloc[0]) for log in logs])
        contents.append({content(log) for log in logs})
        assert len(contents[-1]) == len(logs)
    assert not contents[0] & contents[1]
    calibration, judged = jobs
    assert not {job["seed"] for job in calibration} & {job["seed"] for job in judged}
    # Beside the seed, each config differs.
    configs = [
        {json.dumps({k: v for k, v in job.items() if k != "seed"}, sort_keys=True) for job in each}
        for each in jobs
    ]
    assert not configs[0] & configs[1]
    assert len(judged) >= 100
    assert {job["family"] for job in judged if job["shuffled"]} == {job["family"] for job in judged}
