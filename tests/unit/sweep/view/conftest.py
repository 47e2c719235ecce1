"""A live view in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scaling.sweep.view import live as view
from scaling.sweep.view.plain import View
from tests.support.inline_child import Clock
from tests.support.terminal import Open, Terminal


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Open a live view in a terminal of a size; the view is closed at the end."""
    opened: list[tuple[Terminal, View]] = []

    def make(columns: int = 80, lines: int = 24, encoding: str = "utf-8") -> tuple[Terminal, View, Clock]:
        for name, value in (("COLUMNS", str(columns)), ("LINES", str(lines)), ("TERM", "xterm-256color")):
            monkeypatch.setenv(name, value)
        terminal, clock = Terminal(columns, lines, encoding), Clock(1000.0)
        screen = view.make("live", terminal.stream, clock=clock)
        opened.append((terminal, screen))
        return terminal, screen, clock

    monkeypatch.delenv("NO_COLOR", raising=False)
    yield make
    for terminal, screen in opened:
        screen.closed()
        terminal.close()
