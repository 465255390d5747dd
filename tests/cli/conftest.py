"""Settings that tests of commands share."""

import pytest


@pytest.fixture
def cpu(monkeypatch):
    """As on a computer without a GPU."""
    monkeypatch.setattr("jax.default_backend", lambda: "cpu")
