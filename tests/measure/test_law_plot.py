"""The picture of a law, and its repr."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from emergo import InputError
from emergo.measure import fit_law


def table():
    rng = np.random.default_rng(0)
    rows = [(T, d) for T in (16, 32, 64) for d in (4, 8) for _ in range(3)]
    frame = pd.DataFrame(rows, columns=["length", "dim"])
    frame["plateau"] = (
        3 * frame["length"] * np.sqrt(frame["dim"]) * np.exp(0.05 * rng.normal(size=len(frame)))
    )
    return frame.assign(censored=frame["plateau"] > 400)


def test_the_picture_has_one_panel_per_term_and_one_for_the_law():
    plot = fit_law(table()).plot()
    dim, length, last = plot.axes
    assert dim.get_title(loc="left").startswith("exponent of dim")
    assert dim.get_xlabel() == "dim"
    assert length.get_xticks().tolist() == [16, 32, 64]  # the values of the data
    assert last.get_xlabel() == "plateau by the law"
    assert last.get_legend() is not None  # it explains censored runs
    assert plot.get_suptitle().startswith("plateau = ")


def test_every_run_is_drawn_once_per_panel():
    frame = table()
    for axes in fit_law(frame).plot().axes:
        observed, censored = axes.lines[:2]
        counts = [np.size(line.get_xdata()) for line in (observed, censored)]
        assert counts == [(~frame["censored"]).sum(), frame["censored"].sum()]


def test_repr_shows_intervals():
    law = fit_law(table())
    assert law.with_censored is not None
    lines = repr(law).splitlines()
    note = next(
        i for i, line in enumerate(lines) if line.startswith("note: least squares leave out")
    )
    for fitted, (first, *intervals) in (
        (law, lines[:note]),
        (law.with_censored, lines[note + 1 :]),
    ):
        assert first.startswith(fitted.formula)
        assert [line.split()[0] for line in intervals] == ["C", "dim", "length"]
        assert all("95% [" in line for line in intervals)


def test_a_law_without_its_table_cannot_be_drawn():
    law = fit_law(table())
    bare = dataclasses.replace(law, table=None)
    assert bare == law
    with pytest.raises(InputError, match="fit it again"):
        bare.plot()


def test_a_notebook_shows_text_and_picture():
    law = fit_law(
        pd.DataFrame({"dim": [1.0, 2.0, 4.0], "plateau": [3.0, 6.0, 12.0]}), "plateau", ["dim"]
    )
    assert law._repr_html_().startswith("<pre>plateau = 3 dim^1.00")
    assert 'src="data:image/png;base64,iVBOR' in law._repr_html_()
    assert "img" not in dataclasses.replace(law, table=None)._repr_html_()
    assert law.plot()._repr_png_()[:4] == b"\x89PNG"
