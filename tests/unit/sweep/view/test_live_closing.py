"""What a live view leaves behind in a terminal when it closes, read by pyte."""

from __future__ import annotations

from typing import TextIO, cast

import pytest

from scaling.sweep.view import live as view
from tests.support.live_views import Open
from tests.support.scripted_points import measuring, point, running, starting, ten_rows
from tests.support.terminal import Halting


def test_closing_frees_the_cursor_and_leaves_progress_and_notes(live: Open) -> None:
    terminal, screen, clock = live(80)
    running(screen, clock, measuring(starting(point(16), hosts=4)), ten_rows(), ["a", "b", "c", "d"])
    terminal.look()
    assert terminal.is_cursor_hidden()
    screen.closed()
    lines = terminal.look()
    assert not terminal.is_cursor_hidden()
    assert [line for line in lines[2:] if line] == ["! b", "! c", "! d"]
    assert (terminal.screen.cursor.x, terminal.screen.cursor.y) == (0, 7)
    frames = terminal.frames
    clock.now_s += 5
    screen.closed()
    screen.note("too late")
    assert terminal.look() == lines
    assert terminal.frames == frames


def test_closing_where_the_terminal_is_now(live: Open) -> None:
    old, screen, clock = live(80)
    now, _, _ = live(80)
    running(screen, clock, measuring(starting(point(2))))
    now.write("\x1b[?25l")
    screen.closed(now.stream)
    assert old.is_cursor_hidden()
    assert not now.is_cursor_hidden()
    assert now.look()[0].startswith("scaling  torch:gloo")


def test_closing_before_opening_writes_nothing(live: Open) -> None:
    terminal, screen, _ = live(80)
    screen.closed()
    assert terminal.look() == [""] * 24


@pytest.mark.parametrize("at", [2, 3, 4])
def test_closing_after_an_interrupted_refresh(live: Open, at: int) -> None:
    terminal, _, clock = live(80)
    screen = view.make("live", cast(TextIO, Halting(terminal.stream, at)), clock=clock)
    with pytest.raises(KeyboardInterrupt):
        running(screen, clock, measuring(starting(point(2))), ten_rows())
        clock.now_s += 1
        screen.note("a third frame")
    assert terminal.is_cursor_hidden()
    screen.closed()
    assert not terminal.is_cursor_hidden()
