"""What a view of a running sweep is told, whatever it makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TextIO

from scaling.analysis.table.analyse import Row
from scaling.records.run import Header, PointRecord
from scaling.sweep.state import PointState


class View(Protocol):
    """Told of everything that happens in a sweep, in order."""

    def opened(self, header: Header, total: int) -> None:
        """The sweep begins; `total` points are planned. Once."""

    def began(self, state: PointState, number: int) -> None:
        """An attempt at point `number`, counted from 1, begins."""

    def progress(self, state: PointState) -> None:
        """The newest state of the running point: on every turn of the event loop."""

    def finished(
        self, record: PointRecord, rows: Sequence[Row], number: int, total: int, left_s: float | None
    ) -> None:
        """A point ended, well or not. `rows` is the table so far, `left_s` the time left in seconds."""

    def extended(self, total: int) -> None:
        """A round was added; now `total` points are planned."""

    def note(self, text: str) -> None:
        """A warning or another event worth a line."""

    def closed(self, stream: TextIO | None = None) -> None:
        """The sweep is over or broken off: restore the terminal. May be called again.

        `stream` is where the terminal is now, if another than before: a launcher that was told to end may
        no longer forward what its ranks print.
        """
