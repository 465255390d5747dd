from emergo.bench import bench_flows


def test_the_benchmark_measures_both_and_they_agree():
    found = bench_flows(count=12, repeats=3)
    assert found["largest_relative_difference"] < 1e-6
    assert found["seconds"] > 0
    assert found["scipy_seconds"] > 0
    assert found["ratio"] == found["scipy_seconds"] / found["seconds"]
