"""Live views, each in a terminal of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from scaling.sweep.view import live as view
from scaling.sweep.view.base import View
from tests.support.scripted_points import Clock
from tests.support.terminal import Terminal

Open = Callable[..., tuple[Terminal, View, Clock]]


def opening(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Give what opens a live view in a terminal of a size; close all that were opened."""
    opened: list[tuple[Terminal, View]] = []

    def make(columns: int = 80, lines: int = 24, encoding: str = "utf-8") -> tuple[Terminal, View, Clock]:
        for name, value in (("COLUMNS", str(columns)), ("LINES", str(lines)), ("TERM", "xterm-256color")):
            monkeypatch.setenv(name, value)
        terminal, clock = Terminal(columns, lines, encoding), Clock()
        screen = view.make("live", terminal.stream, clock=clock)
        opened.append((terminal, screen))
        return terminal, screen, clock

    monkeypatch.delenv("NO_COLOR", raising=False)
    yield make
    for terminal, screen in opened:
        screen.closed()
        terminal.close()
