"""Models are tested with their optimised forward passes."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def optimised(fast_paths: None) -> None:
    """Use the optimised forward passes in every module of this folder."""
