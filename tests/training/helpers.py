"""Comparisons of results, and interrupts."""

import os
import signal

import numpy as np
import pytest

from .untyped import train


def identical(one, two):
    """Require equal numbers from the same program."""
    assert (one.run, one.state, one.failed_step) == (two.run, two.state, two.failed_step)
    assert set(one.curves) == set(two.curves)
    for name, values in one.curves.items():
        assert np.array_equal(values, two.curves[name], equal_nan=values.dtype.kind == "f"), name


def alike(one, two, tolerance=1e-3):
    """Require equal numbers up to rounding: errors of 1e-7 grow to less than 1e-3 in 100 steps."""
    assert (one.run, one.state) == (two.run, two.state)
    assert set(one.curves) == set(two.curves)
    for name, values in one.curves.items():
        np.testing.assert_allclose(
            values, two.curves[name], rtol=tolerance, atol=tolerance, err_msg=name
        )


class Interrupt:
    """A progress callback that sends Ctrl-C after a number of chunks."""

    def __init__(self, after):
        self.after = after

    def __call__(self, progress):
        self.after -= 1
        if self.after == 0:
            os.kill(os.getpid(), signal.SIGINT)


def check_going_on(results, folder, after=2, **options):
    """Require that an interrupted call, made again, has bitwise the results of the whole call."""
    runs = [result.run for result in results]
    with pytest.raises(KeyboardInterrupt):
        train(runs, checkpoint=folder, progress=Interrupt(after), **options)
    assert len(list(folder.iterdir())) == 1
    for one, two in zip(train(runs, checkpoint=folder, **options), results, strict=True):
        identical(one, two)
    assert list(folder.iterdir()) == []
