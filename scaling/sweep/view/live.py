"""The live view of a running sweep in a terminal; `make` chooses between it, plain lines and none.

Rank 0 calls a view on cores that are being measured: it draws at most once a second. rich is imported only when a
live view is made, so that other ranks do not pay for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO, cast

from scaling.analysis.table.analyse import Row
from scaling.records.events import Failed
from scaling.records.run import Header, PointRecord
from scaling.sweep.forecast import Ahead
from scaling.sweep.state import PointState
from scaling.sweep.view.base import View
from scaling.sweep.view.frame import ASCII, NOTES, Glyphs, Note, Scene, frame
from scaling.sweep.view.plain import NoView, PlainView, Stream, failure, headline
from scaling.text import one_line, printable
from scaling.transport import terminal
from scaling.transport.terminal import ViewKind

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

REFRESH_S = 1.0


def make(
    kind: ViewKind,
    stream: TextIO,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> View:
    """Return the view of this kind on `stream`, which is stdout if the kind is `auto`. The view is plain if the
    terminal cannot move its cursor (TERM=dumb)."""
    if kind == "none":
        return NoView(stream, clock)
    if kind == "plain" or terminal.is_dumb():
        return PlainView(stream, clock)
    shown_on = terminal.find()
    return PlainView(stream, clock) if kind == "auto" and shown_on is None else LiveView(stream, clock, shown_on)


class LiveView:
    """A view that draws the newest state over the last one, at most once a second. `shown_on` is the file
    descriptor of the terminal; None if unknown."""

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        shown_on: int | None = None,
    ) -> None:
        from rich.live import Live

        self._clock = clock
        self._shown_on = shown_on
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
        self._opened_s = self._due_s = clock()
        self._ahead: Ahead | None = None
        self._state: PointState | None = None
        self._rows: Sequence[Row] = ()
        self._notes: list[Note] = []

    def opened(self, header: Header, total: int) -> None:
        self._title, self._total = one_line(headline(header)), total
        self._opened_s = self._clock()
        self._ahead = Ahead(0.0, header.estimate_s or None)
        self._live.start()
        self._look()

    def began(self, state: PointState, number: int) -> None:
        # A resumed run starts with points that are done.
        self._number, self._done = number, number - 1
        self.progress(state)

    def progress(self, state: PointState) -> None:
        self._state = state
        self._look()

    def advanced(self, ahead: Ahead) -> None:
        self._ahead = ahead

    def finished(self, record: PointRecord, rows: Sequence[Row], number: int, total: int) -> None:
        self._done, self._total, self._rows = number, total, rows
        self._state = None
        label = record.point.label
        if isinstance(record.outcome, Failed):
            self._noted(Note(one_line(f"{label}: {failure(record.outcome)}"), is_failure=True))
        self._noted(*(Note(one_line(f"{label}: {warning.text}")) for warning in record.warnings))
        self._look()

    def extended(self, total: int) -> None:
        self._total = total
        self._look()

    def note(self, text: str) -> None:
        self._noted(Note(one_line(text)))
        self._look()

    def closed(self, stream: TextIO | None = None) -> None:
        """Leave progress and notes on the screen; the whole table is printed after them."""
        if stream is not None:
            self._stream.redirect(stream)
        self._state, self._rows, self._ahead = None, (), None
        self._live.update(self._draw())
        self._live.stop()

    @property
    def columns(self) -> int:
        """The width of the terminal."""
        return terminal.size(self._shown_on).columns

    def _noted(self, *notes: Note) -> None:
        self._notes = [*self._notes, *notes][-NOTES:]

    def _look(self) -> None:
        now_s = self._clock()
        if now_s >= self._due_s and self._live.is_started:
            self._due_s = now_s + REFRESH_S
            self._live.update(self._draw(), refresh=True)

    def _draw(self) -> Text:
        from rich.text import Text

        columns, rows = terminal.size(self._shown_on)
        self._console.size = (columns, rows)
        # One line and one column stay free, or the terminal would scroll or wrap. The frame ends its last line:
        # mpirun (Open MPI 5) forwards whole lines only.
        lines = frame(self._scene(), width=columns - 1, height=rows - 1, glyphs=self._glyphs)
        text = Text(no_wrap=True, overflow="crop", end="")
        for line in lines:
            for words, style in line:
                text.append(printable(words), style or None)
            text.append("\n")
        text.append("\n")
        return text

    def _scene(self) -> Scene:
        now_s = self._clock()
        return Scene(
            title=self._title,
            done=self._done,
            total=self._total,
            elapsed_s=now_s - self._opened_s,
            ahead=self._ahead,
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
