"""Hypothesis strategies over the valid range of the theory."""

import numpy as np
from hypothesis import strategies as st

from emergo import theory


@st.composite
def cells(draw, max_length=10**6, max_dim=4096, repeat=True):
    """Any valid cell, sizes spread over their logarithms."""
    length = int(np.exp(draw(st.floats(np.log(2), np.log(max_length)))))
    length = max(length, 2)
    dim = max(1, int(np.exp(draw(st.floats(0, np.log(max_dim))))))
    burst = max(1, min(length - 1, int(np.exp(draw(st.floats(0, np.log(length)))))))
    p = draw(st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1))) if repeat else 0.0
    return theory.cells(length, dim, burst, p)
