"""Speed, measured against peers in one run. Timings live here, never in tests."""

from ._flows import bench_flows, random_cells, scipy_plateau

__all__ = ["bench_flows", "random_cells", "scipy_plateau"]
