"""A terminal to look at: what a person would see of a program's output."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import TextIO, cast

import pyte

from scaling.sweep.view.plain import View
from tests.support.inline_child import Clock


class Terminal:
    """A pseudo-terminal, as a stream to write to and as the screen that a person would see in it.

    A second screen, much wider, gets the same: where the two differ, a line was wrapped.
    """

    def __init__(self, columns: int, lines: int = 24, encoding: str = "utf-8") -> None:
        self.screen, wide = pyte.Screen(columns, lines), pyte.Screen(4 * columns, lines)
        self._screens = self.screen, wide
        self._parsers = [pyte.ByteStream(screen) for screen in self._screens]
        master, slave = os.openpty()
        self._master = os.fdopen(master, "rb", buffering=0)
        self._slave = os.fdopen(slave, "wb", buffering=0)
        self.encoding = encoding
        self.frames = 0

    @property
    def stream(self) -> TextIO:
        return cast(TextIO, self)

    def write(self, text: str) -> int:
        data = text.encode(self.encoding)
        # In pieces: nobody else reads, and a full pseudo-terminal blocks.
        for start in range(0, len(data), 1024):
            self._slave.write(data[start : start + 1024])
            self._read()
        self.frames += text.count("scaling  ")
        return len(text)

    def flush(self) -> None:
        """Nothing is buffered."""

    def _read(self) -> None:
        while select.select([self._master], [], [], 0)[0]:
            data = self._master.read(65536)
            for parser in self._parsers:
                parser.feed(data)

    def look(self) -> list[str]:
        """The lines on screen, none of them wrapped."""
        self._read()
        narrow, wide = map(_lines, self._screens)
        assert narrow == wide
        return narrow

    def colour(self, text: str) -> str:
        """The colour of the first sign of `text`."""
        for y, line in enumerate(_lines(self.screen)):
            if text in line:
                return str(self.screen.buffer[y][line.index(text)].fg)
        raise AssertionError(f"{text!r} is not on screen")

    def is_cursor_hidden(self) -> bool:
        self._read()
        return bool(self.screen.cursor.hidden)

    def hang_up(self) -> None:
        self._master.close()

    def close(self) -> None:
        self._slave.close()
        self._master.close()


def _lines(screen: pyte.Screen) -> list[str]:
    """What stands on a screen, without the blanks at the ends; its `display` looks at each of them."""
    rows = [screen.buffer[y] for y in range(screen.lines)]
    return ["".join(row[x].data for x in range(max(row, default=-1) + 1)).rstrip() for row in rows]


# Opens a live view in a terminal of a size.
Open = Callable[..., tuple[Terminal, View, Clock]]
