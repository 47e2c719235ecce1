"""The live view of a running sweep in a terminal; `make` chooses between it, plain lines and none.

Rank 0 calls a view on cores that are being measured: it draws at most once a second. rich is imported only when a
live view is made, so that other ranks do not pay for it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TextIO, cast

from scaling.analysis.table.analyse import Row
from scaling.records.events import Failed
from scaling.records.run import Header, PointRecord
from scaling.sweep.state import PointState
from scaling.sweep.view.base import View
from scaling.sweep.view.frame import ASCII, Glyphs, Note, Scene, frame
from scaling.sweep.view.plain import NoView, PlainView, Stream, failure, headline
from scaling.text import one_line, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

REFRESH_S = 1.0
DUMB = ("dumb", "unknown")


def make(
    kind: Literal["live", "plain", "none"],
    stream: TextIO,
    *,
    clock: Callable[[], float] = time.monotonic,
    columns: int | None = None,
) -> View:
    """Return the view of this kind on `stream`; plain lines if the terminal cannot move its cursor (TERM=dumb).
    `columns` is its width; None takes COLUMNS or asks the terminal."""
    if kind == "none":
        return NoView(stream, clock)
    if kind == "plain" or os.environ.get("TERM", "").lower() in DUMB:
        return PlainView(stream, clock)
    return LiveView(stream, clock, columns)


class LiveView:
    """A view that draws the newest state over the last one, at most once a second."""

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        columns: int | None = None,
    ) -> None:
        from rich.live import Live

        self._clock = clock
        self._columns = columns
        self._stream = Stream(stream)
        self._console = _console(self._stream)
        self._glyphs = Glyphs() if self._console.encoding.startswith("utf") else ASCII
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._title = ""
        self._done = self._total = self._number = 0
        self._opened_s = self._due_s = self._left_at_s = clock()
        self._left_s: float | None = None
        self._state: PointState | None = None
        self._rows: Sequence[Row] = ()
        self._notes: list[Note] = []

    def opened(self, header: Header, total: int) -> None:
        self._title, self._total = one_line(headline(header)), total
        self._opened_s = self._left_at_s = self._clock()
        self._left_s = header.estimate_s or None
        self._live.start()
        self._look()

    def began(self, state: PointState, number: int) -> None:
        # A resumed run starts with points that are done.
        self._number, self._done = number, number - 1
        self.progress(state)

    def progress(self, state: PointState) -> None:
        self._state = state
        self._look()

    def finished(
        self, record: PointRecord, rows: Sequence[Row], number: int, total: int, left_s: float | None
    ) -> None:
        self._done, self._total, self._rows = number, total, rows
        self._left_s, self._left_at_s = left_s, self._clock()
        self._state = None
        label = record.point.label
        if isinstance(record.outcome, Failed):
            self._notes.append(Note(one_line(f"{label}: {failure(record.outcome)}"), is_failure=True))
        self._notes += [Note(one_line(f"{label}: {warning.text}")) for warning in record.warnings]
        self._look()

    def extended(self, total: int) -> None:
        self._total = total
        self._look()

    def note(self, text: str) -> None:
        self._notes.append(Note(one_line(text)))
        self._look()

    def closed(self, stream: TextIO | None = None) -> None:
        """Leave progress and notes on the screen; the whole table is printed after them."""
        if stream is not None:
            self._stream.redirect(stream)
        self._state, self._rows, self._left_s = None, (), None
        self._live.update(self._draw())
        self._live.stop()

    def _look(self) -> None:
        now_s = self._clock()
        if now_s >= self._due_s and self._live.is_started:
            self._due_s = now_s + REFRESH_S
            self._live.update(self._draw(), refresh=True)

    def _draw(self) -> Text:
        from rich.text import Text

        terminal = shutil.get_terminal_size()
        width = self._columns or terminal.columns
        self._console.size = (width, terminal.lines)
        # One line and one column stay free, or the terminal would scroll or wrap. The frame ends its last line:
        # mpirun (Open MPI 5) forwards whole lines only.
        lines = frame(self._scene(), width=width - 1, height=terminal.lines - 1, glyphs=self._glyphs)
        text = Text(no_wrap=True, overflow="crop", end="")
        for line in lines:
            for words, style in line:
                text.append(printable(words), style or None)
            text.append("\n")
        text.append("\n")
        return text

    def _scene(self) -> Scene:
        now_s = self._clock()
        left_s = None if self._left_s is None else max(self._left_s - (now_s - self._left_at_s), 0.0)
        return Scene(
            title=self._title,
            done=self._done,
            total=self._total,
            elapsed_s=now_s - self._opened_s,
            left_s=left_s,
            running=self._state,
            number=self._number,
            running_s=now_s - self._state.started_s if self._state else 0.0,
            rows=self._rows,
            notes=self._notes,
        )


def _console(stream: Stream) -> Console:
    from rich.console import Console

    return Console(
        file=cast(TextIO, stream),
        force_terminal=True,
        force_interactive=True,
        legacy_windows=False,
        markup=False,
    )
