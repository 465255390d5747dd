"""The experiment emergo/forecast: calibration and judged runs, outcomes and measures."""

import json

from emergo.forecasting.experiment._moments import AGAIN, CALIBRATION, JUDGED, content
from emergo.measure import read_table


def test_calibration_and_judged_runs_are_disjoint():
    """By config, by seed, and by a hash of the losses."""
    jobs = []
    contents: list[set[str]] = []
    for path in (CALIBRATION, JUDGED, AGAIN):
        logs = [log for _, log in read_table(path).groupby("run", sort=False)]
        jobs.append([json.loads(log["job"].iloc[0]) for log in logs])
        contents.append({content(log) for log in logs})
        assert len(contents[-1]) == len(logs)
    assert not contents[0] & (contents[1] | contents[2])
    assert not contents[1] & contents[2]
    seeds = [{job["seed"] for job in each} for each in jobs]
    assert not seeds[0] & (seeds[1] | seeds[2])
    assert not seeds[1] & seeds[2]
    # Beside the seed, each config differs from those of the calibration.
    configs = [
        {json.dumps({k: v for k, v in job.items() if k != "seed"}, sort_keys=True) for job in each}
        for each in jobs
    ]
    assert not configs[0] & (configs[1] | configs[2])
    judged = jobs[1]
    assert len(judged) >= 100
    assert {job["family"] for job in judged if job["shuffled"]} == {job["family"] for job in judged}
