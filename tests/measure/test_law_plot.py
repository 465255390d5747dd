"""The picture of a law, and its repr."""

import dataclasses

import numpy as np
import pytest

from emergo import InputError
from emergo.measure import fit_law

from .synthetic import censor, synthetic


def table():
    return censor(synthetic(0), 0.3)


def test_the_picture_has_one_panel_per_term_and_one_for_the_law():
    plot = fit_law(table()).plot()
    dim, length, last = plot.axes
    assert dim.get_title(loc="left").startswith("exponent of dim")
    assert dim.get_xlabel() == "dim"
    assert length.get_xlabel() == "length"
    assert last.get_xlabel() == "plateau by the law"
    assert last.get_legend() is not None  # it explains censored runs
    assert plot.get_suptitle().startswith("plateau = ")


def test_every_run_is_drawn_once_per_panel():
    frame = table()
    for axes in fit_law(frame).plot().axes:
        observed, censored = axes.lines[:2]
        counts = [np.size(line.get_xdata()) for line in (observed, censored)]
        assert counts == [(~frame["censored"]).sum(), frame["censored"].sum()]


def test_a_law_without_its_table_cannot_be_drawn():
    law = fit_law(table())
    bare = dataclasses.replace(law, table=None)
    assert bare == law
    with pytest.raises(InputError, match="fit it again"):
        bare.plot()


@pytest.mark.parametrize("absurd", [1e308, 1e-308])
def test_a_law_of_a_table_with_an_absurd_value_is_drawn(absurd):
    """Warnings are errors in tests, and a user would see them in the terminal."""
    frame = table()
    frame.loc[0, "plateau"] = absurd
    assert len(fit_law(frame).plot().axes) == 3
