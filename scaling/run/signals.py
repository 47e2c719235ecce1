"""Ctrl-C and SIGTERM of a rank, from its first moment on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


class Signals:
    """Signals that ask for the end, noted until there is somebody to tell.

    USR1 means Ctrl-C: unlike that, every mpirun hands it on to its ranks while it goes on forwarding their output
    (launch/local sends it).
    """

    def __init__(self) -> None:
        self._interrupt: Callable[[int], None] | None = None
        self._early: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self._interrupt is None:
            self._early = number
        else:
            self._interrupt(number)

    def hand_to(self, interrupt: Callable[[int], None]) -> None:
        """From now on `interrupt` is told; also of what came before."""
        self._interrupt = interrupt
        if self._early is not None:
            interrupt(self._early)
