"""Signals that ask a rank to end, from its first moment on: Ctrl-C, SIGTERM, SIGUSR1, SIGHUP."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from scaling import files
from scaling.errors import Interrupted
from scaling.text import signal_name

# A launcher may pass on one Ctrl-C as two signals.
AGAIN_S = 1.0
STDERR = 2


class Signals:
    """Signals that ask for the end, kept until they can be passed on. USR1 means Ctrl-C: every mpirun passes it on
    and goes on forwarding its ranks' output (launch/local sends it). SIGHUP stays ignored under nohup. If the
    process is stuck, the first signal prints what is being loaded, and the next one ends the process."""

    def __init__(self) -> None:
        self.fd, told = os.pipe()  # readable after a signal
        for fd in (self.fd, told):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        self._interrupt: Callable[[int], None] | None = None
        self._waits: Callable[[], bool] = lambda: self._early is not None
        self._early: int | None = None
        self._noted_s = 0.0
        self._asking = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._asking.append(signal.SIGHUP)
        self._listen()

    def _listen(self) -> None:
        for number in self._asking:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if not self._waits():
            self._noted_s = now_s
            _say_what_is_loaded(number)
        elif now_s - self._noted_s > AGAIN_S:
            os._exit(Interrupted(number).exit_code)
        if self._interrupt is None:
            self._early = number
        else:
            self._interrupt(number)

    def hand_to(self, interrupt: Callable[[int], None], waits: Callable[[], bool]) -> None:
        """Call `interrupt` for each signal, also for an earlier one; `waits` tells whether one is still unnoticed.
        Handlers are set again, because UCX, below MPI, takes SIGHUP and ignores it."""
        self._listen()
        self._interrupt, self._waits = interrupt, waits
        if self._early is not None:
            interrupt(self._early)


def _say_what_is_loaded(number: int) -> None:
    if what := files.loading_now():
        with suppress(OSError):
            os.write(
                STDERR,
                f"scaling: {signal_name(number)} waits for {what}; the next one ends scaling at once\n".encode(),
            )
