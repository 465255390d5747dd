"""Digests of the source of user code."""

import importlib

import numpy as np
import pytest

from emergo import Task
from emergo.core.source import source_digests

SOURCE = '''
import jax.numpy as jnp
from emergo import Task

SCALE = 2.0


def helper(x):
    return x * SCALE


class Mine(Task):
    """A task."""

    size: int = 3

    def batch(self, key, n, truth):
        """Draw."""
        return helper(n)  # a comment

    def loss(self, output, batch):
        return jnp.sum(output)


def probe(params, *rest):
    return {"x": helper(1)}
'''


@pytest.fixture
def load(tmp_path, monkeypatch):
    """A function that returns the digests of a module with this source."""
    monkeypatch.syspath_prepend(tmp_path)
    number = 0

    def load(source):
        nonlocal number
        number += 1
        (tmp_path / f"code_{number}.py").write_text(source)
        module = importlib.import_module(f"code_{number}")
        found = dict(source_digests(module.Mine)) | dict(source_digests(module.probe))
        return {name.partition(":")[2]: digest for name, digest in found.items()}

    return load


def changed(one, two):
    return {name for name in one | two if one.get(name) != two.get(name)}


def test_only_the_parts_that_mean_something_else_change(load):
    before = load(SOURCE)
    assert set(before) == {"Mine.size", "Mine.batch", "Mine.loss", "probe"}

    def after(old, new):
        assert old in SOURCE
        return changed(before, load(SOURCE.replace(old, new)))

    assert after("# a comment", "# another") == set()
    assert after('"""Draw."""', '"""Draw some sequences."""') == set()
    assert after("size: int = 3", "size: int = 4") == {"Mine.size"}
    assert after("jnp.sum(output)", "jnp.mean(output)") == {"Mine.loss"}
    assert after("SCALE = 2.0", "SCALE = 3.0") == {"Mine.batch", "probe"}
    assert after("return x * SCALE", "return x + SCALE") == {"Mine.batch", "probe"}


def test_code_of_packages_and_of_sessions_has_no_digest():
    assert source_digests(Task) == ()
    assert source_digests(np.zeros_like) == ()
    namespace = {"__name__": "a_session", "Task": Task}
    exec("class Typed(Task):\n    size: int = 3", namespace)
    assert source_digests(namespace["Typed"]) == ()
