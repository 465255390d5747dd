"""What commands print while they work, and of what they found."""

import io

import pytest
import rich.console

from emergo import _terminal


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "none"),
        ([1.0, 2.5], "1, 2.5"),
        ([[3.0, 2.5, 4.0], [9.0, None, 10.0]], "3 [2.5, 4], 9 [-, 10]"),
        ({"600": 1.23456789, "900": None}, "600: 1.23457, 900: -"),
        (True, "yes"),
    ],
)
def test_values_are_short(value, words):
    assert _terminal.short(value) == words


def test_a_description_that_only_counts_is_one_bar(monkeypatch):
    screen, console = io.StringIO(), rich.console.Console
    monkeypatch.setattr(rich.console, "Console", lambda stderr: console(file=screen, force_terminal=True, width=100))
    with _terminal.progress_bar() as show:
        for done in range(4):
            show(f"training: {done} of 9 runs, {100 + done} steps/s, about {9 - done} s left", done / 9)
        show("drawing", 0.5)
    last = screen.getvalue().split("\x1b[2K")[-1]
    assert last.count("training") == 1
    assert last.count("drawing") == 1


def test_without_a_terminal_a_line_comes_every_ten_seconds(monkeypatch, capsys):
    now = iter([0.0, 5.0, 11.0, 11.0, 12.0])
    monkeypatch.setattr(_terminal.time, "monotonic", lambda: next(now))
    with _terminal.progress_bar() as show:
        for done in range(3):
            show(f"training: {done} of 9 runs", done / 9)
    assert capsys.readouterr().err == "emergo: training: 1 of 9 runs\n"
