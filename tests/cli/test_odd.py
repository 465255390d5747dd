"""Odd input of any kind is one line and exit status 2, or is accepted."""

import pytest

from .odd import survey


@pytest.mark.slow
def test_odd_input_is_refused_in_one_line_or_accepted(tmp_path, cpu):
    found = survey(tmp_path)
    assert not found["wrong"], found["wrong"][:3]
    assert sum(map(len, found.values())) >= 229
    assert len(found["accepted"]) < 60  # else it is not odd
