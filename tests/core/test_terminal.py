"""Formatting of values, cells and unsafe text."""

import collections
import io

import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st

from emergo.core import terminal as _terminal


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "none"),
        ([1.0, 2.5], "1, 2.5"),
        ([[3.0, 2.5, 4.0], [9.0, None, 10.0]], "3 [2.5, 4], 9 [-, 10]"),
        ([[3.0, 2.5, 4.0, "cells"], [1, 0, 1, 1]], "3 [2.5, 4], 1, 0, 1, 1"),
        ({"600": 1.23456789, "900": None}, "600: 1.23457, 900: -"),
        (True, "yes"),
    ],
)
def test_values_are_short(value, words):
    assert _terminal.short(value) == words


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((0.0708333, -0.128469, 0.270136), "0.07 [-0.13, 0.27]"),
        ((1234.5, 1000.0, 1500.0), "1234 [1000, 1500]"),
        ((0.0012, 0.0011, 0.0013), "0.00120 [0.00110, 0.00130]"),
        ((0.25, None, None), "0.25 [-, -]"),
    ],
)
def test_a_number_has_as_many_digits_as_its_interval_allows(interval, words):
    assert _terminal.rounded_interval(*interval) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (89, "89 s"), (100, "2 min"), (5000, "83 min"), (33_000, "9 h"), (3e6, "35 d")],
)
def test_durations_are_readable(seconds, words):
    assert _terminal.duration(seconds) == words


def cell(**changes):
    usual = {
        "dim": 4,
        "planned": 4,
        "runs": 4,
        "plateau": 90.0,
        "plateau_min": 60.0,
        "plateau_max": 200.0,
    }
    return usual | {"bound": False, "censored": 1, "failed": 0} | changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"censored": 0}, "60-200"),
        ({}, "60 to >200"),
        ({"censored": 4}, ">60 to >200"),
        ({"censored": 4, "plateau_max": 60.0}, ">60"),
        ({"censored": 3, "failed": 1, "plateau_max": 60.0}, ">60"),
    ],
)
def test_a_range_marks_the_ends_that_are_bounds(changes, words):
    assert _terminal.plateau_range(cell(**changes)) == words


def test_a_table_of_cells_marks_bounds_and_chosen_values():
    none = {
        "plateau": None,
        "plateau_min": None,
        "plateau_max": None,
        "runs": 2,
        "censored": 0,
        "failed": 2,
    }
    screen = io.StringIO()
    cells = [cell(), cell(bound=True, chosen=True), cell(**none)]
    rich.console.Console(file=screen, width=100).print(_terminal.cell_table(cells, ["dim"]))
    head, *rows = [line.split() for line in screen.getvalue().splitlines()]
    assert head == ["dim", "runs", "plateau", "min-max", "censored", "failed"]
    assert rows == [
        ["4", "4", "of", "4", "90", "60", "to", ">200", "1", "0"],
        ["4", "4", "of", "4", ">90*", "60", "to", ">200", "1", "0"],
        ["4", "2", "of", "4", "-", "-", "0", "2"],
    ]


@pytest.mark.parametrize(
    ("width", "head"),
    [(80, ["dim", "runs", "plateau", "loss", "curve"]), (28, ["dim", "runs", "plateau", "loss"])],
)
def test_a_narrow_window_drops_optional_columns_and_cuts_nothing(width, head):
    shown = _terminal.FittedTable("dim", "runs", "plateau", "loss", "curve", optional=("curve",))
    shown.add_row("4", "3 of 3", "12345", "0.5", "||||||||||")
    screen = io.StringIO()
    rich.console.Console(file=screen, width=width).print(shown)
    first, *rows = screen.getvalue().splitlines()
    assert first.split() == head
    assert "".join(rows).split()[:5] == ["4", "3", "of", "3", "12345"]


@given(
    st.integers(8, 60), st.lists(st.text("ab12", min_size=1, max_size=30), min_size=3, max_size=3)
)
def test_text_is_folded_and_never_lost(width, words):
    """However narrow the window, all characters of a row are printed, as a list if need be."""
    shown = _terminal.FittedTable("a", "b", "c")
    shown.add_row(*words)
    screen = io.StringIO()
    rich.console.Console(file=screen, width=width).print(shown)
    lines = screen.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    printed = collections.Counter("".join(lines))
    assert collections.Counter("".join(words)) <= printed


HOSTILE = "\x1b]0;owned\x07[/red]\x9b31m\u202e\r\udc80"


def test_unsafe_characters_are_escaped(capsys):
    assert _terminal.safe("a\tb\nÄ²") == "a\tb\nÄ²"
    written = _terminal.safe(HOSTILE)
    assert written == r"\x1b]0;owned\x07[/red]\x9b31m\u202e\r\udc80"
    _terminal.say(HOSTILE)
    _terminal.show(HOSTILE, "second")
    shown = _terminal.FittedTable("name", HOSTILE)
    shown.add_row("[bold]", HOSTILE)
    _terminal.console(wide=True).print(shown)
    out, err = capsys.readouterr()
    assert err == f"emergo: {written}\n"
    assert out.startswith(f"{written}\nsecond\n")
    assert out.count(r"\x1b]0;owned") == 3
    assert "[bold]" in out
    assert not set(out) & set("\x1b\x07\x9b\u202e\r\udc80")
