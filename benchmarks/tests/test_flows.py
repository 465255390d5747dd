"""The benchmark of flows: what is timed is right."""

from benchmarks.flows import bench_flows


def test_both_ways_are_timed_and_give_the_same_plateaus():
    timed = bench_flows(count=12, repeats=3)
    assert timed["cells"] == 12
    # SciPy integrates at the same tolerance; an error in either way would be far larger.
    assert timed["largest_relative_difference"] < 1e-6
    assert min(timed["seconds"], timed["scipy_seconds"]) > 0
