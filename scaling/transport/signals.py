"""Ctrl-C, SIGTERM and a terminal that closed (SIGHUP), of a rank from its first moment on."""

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

# A launcher may hand on one Ctrl-C as two signals within moments.
AGAIN_S = 1.0
STDERR = 2


class Signals:
    """Signals that ask for the end, noted until there is somebody to tell.

    USR1 means Ctrl-C: unlike that, every mpirun hands it on to its ranks while it goes on forwarding their output
    (launch/local sends it). What nohup has set to be ignored stays so.

    Something may keep the process from taking notice, a file server that does not answer for one. The first signal
    then says what is loaded, and the next one ends the process at once.
    """

    def __init__(self) -> None:
        self.fd, told = os.pipe()  # readable once a signal came
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
        """From now on `interrupt` is told; also of what came before. A signal `waits` until notice is taken of it.

        UCX, below MPI, has taken SIGHUP for itself meanwhile and does nothing with it.
        """
        self._listen()
        self._interrupt, self._waits = interrupt, waits
        if self._early is not None:
            interrupt(self._early)


def _say_what_is_loaded(number: int) -> None:
    if what := files.loading_now():
        with suppress(OSError):
            os.write(STDERR, f"scaling: {signal_name(number)} waits for {what}; the next one does not\n".encode())
