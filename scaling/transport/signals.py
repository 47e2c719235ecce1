"""Ctrl-C, SIGTERM and a terminal that closed (SIGHUP), of a rank from its first moment on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


class Signals:
    """Signals that ask for the end, noted until there is somebody to tell.

    USR1 means Ctrl-C: unlike that, every mpirun hands it on to its ranks while it goes on forwarding their output
    (launch/local sends it). What nohup has set to be ignored stays so.
    """

    def __init__(self) -> None:
        self._interrupt: Callable[[int], None] | None = None
        self._early: int | None = None
        self._asking = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._asking.append(signal.SIGHUP)
        self._listen()

    def _listen(self) -> None:
        for number in self._asking:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self._interrupt is None:
            self._early = number
        else:
            self._interrupt(number)

    def hand_to(self, interrupt: Callable[[int], None]) -> None:
        """From now on `interrupt` is told; also of what came before. UCX, below MPI, has taken SIGHUP for itself
        meanwhile and does nothing with it."""
        self._listen()
        self._interrupt = interrupt
        if self._early is not None:
            interrupt(self._early)
