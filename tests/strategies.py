"""Hypothesis strategies over the valid range of the theory."""

import numpy as np
from hypothesis import strategies as st

from emergo import theory


@st.composite
def batches(draw, size=48):
    """Draw many valid cells at once, including corners of the range."""
    each = [draw(cells(max_dim=4096)) for _ in range(size)]
    fields = (np.array([float(getattr(c, name)) for c in each]) for name in theory.Cell._fields)
    return theory.cells(*fields)


@st.composite
def cells(draw, max_length=10**9, max_dim=10**5, repeat=True):
    """Draw a valid cell, with sizes spread over their logarithms."""
    length = int(np.exp(draw(st.floats(np.log(2), np.log(max_length)))))
    length = max(length, 2)
    dim = max(1, int(np.exp(draw(st.floats(0, np.log(max_dim))))))
    burst = max(1, min(length - 1, int(np.exp(draw(st.floats(0, np.log(length)))))))
    p = draw(st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1))) if repeat else 0.0
    return theory.cells(length, dim, burst, p)
