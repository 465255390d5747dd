"""Settings that all tests share."""

from collections.abc import Iterator

import hypothesis
import jaxtyping
import matplotlib as mpl
import pytest

mpl.use("Agg")
# Compilation makes the first example slow; runs must not depend on the clock or on chance.
hypothesis.settings.register_profile("emergo", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("emergo")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the type checks that tests run under, as for a user: what is wrong then meets the package's own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
