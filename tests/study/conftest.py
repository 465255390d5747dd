"""Fixtures of the tests of studies."""

from collections.abc import Iterator

import pytest

from .slurm_cluster import Cluster, why_not


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a real Slurm, which commands find by their environment."""
    if why_not() is not None:
        pytest.skip(f"no Slurm: {why_not()}")
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    with pytest.MonkeyPatch.context() as patch:
        try:
            cluster.start()
            patch.setenv("SLURM_CONF", str(cluster.config))
            yield cluster
        finally:
            cluster.stop()
