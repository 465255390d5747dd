"""Speed, measured against peers in one run. Timings live here, never in tests."""

from ._flows import bench_flows, random_cells, scipy_plateau
from ._training import Case, bench_training, default_cases, main_cases

__all__ = ["Case", "bench_flows", "bench_training", "default_cases", "main_cases", "random_cells", "scipy_plateau"]
