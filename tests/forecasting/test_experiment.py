"""The experiment emergo/forecast: calibration and judged runs, outcomes and measures."""

import itertools
import json

from emergo.forecasting.experiment._moments import (
    AGAIN,
    CALIBRATION,
    FRESH,
    JUDGED,
    content,
)
from emergo.measure import read_table


def test_calibration_and_judged_runs_are_disjoint():
    """By config, by seed, and by a hash of the losses."""
    jobs = []
    contents: list[set[str]] = []
    for path in (CALIBRATION, JUDGED, AGAIN, FRESH):
        logs = [log for _, log in read_table(path).groupby("run", sort=False)]
        jobs.append([json.loads(log["job"].iloc[0]) for log in logs])
        contents.append({content(log) for log in logs})
        assert len(contents[-1]) == len(logs)
    seeds = [{job["seed"] for job in each} for each in jobs]
    for one, two in itertools.combinations(range(4), 2):
        assert not contents[one] & contents[two]
        assert not seeds[one] & seeds[two]
    # Beside the seed, each config differs from those of the calibration and of earlier judgements.
    configs = [
        {json.dumps({k: v for k, v in job.items() if k != "seed"}, sort_keys=True) for job in each}
        for each in jobs
    ]
    assert not configs[0] & (configs[1] | configs[2])
    assert not configs[3] & (configs[0] | configs[1] | configs[2])
    judged = jobs[1]
    assert len(judged) >= 100
    assert {job["family"] for job in judged if job["shuffled"]} == {job["family"] for job in judged}
