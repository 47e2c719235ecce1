"""The interface of a view of a running sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TextIO

from scaling.analysis.table.analyse import Row
from scaling.records.run import Header, PointRecord
from scaling.sweep.forecast import Ahead
from scaling.sweep.state import PointState


class View(Protocol):
    """The receiver of all events of a sweep, in order."""

    def opened(self, header: Header, total: int) -> None:
        """Begin; `total` points are planned. Called once."""

    def began(self, state: PointState, number: int) -> None:
        """Begin an attempt at point `number`, counted from 1."""

    def progress(self, state: PointState) -> None:
        """Take the newest state of the running point, on every turn of the event loop."""

    def advanced(self, ahead: Ahead) -> None:
        """Note how much is done and left. The next `progress` or `finished` shows it."""

    def finished(self, record: PointRecord, rows: Sequence[Row], number: int, total: int) -> None:
        """Note that a point has ended; `number` of `total` are over. `rows` is the table so far."""

    def extended(self, total: int) -> None:
        """Note that a round was added; now `total` points are planned."""

    def note(self, text: str) -> None:
        """Show a warning or another event."""

    def closed(self, stream: TextIO | None = None) -> None:
        """Restore the terminal at the end. May be called again. `stream` is the terminal, if it has changed: a
        launcher that is being ended may not forward its ranks' output."""
