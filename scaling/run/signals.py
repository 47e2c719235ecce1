"""Ctrl-C and SIGTERM of a rank, from its first moment on."""

from __future__ import annotations

import signal
from types import FrameType

from scaling.agent.agent import Agent


class Signals:
    """Ctrl-C and SIGTERM, noted from the first moment on. USR1 means Ctrl-C: unlike that, every mpirun hands
    it on to its ranks while it goes on forwarding their output (launch/local sends it)."""

    def __init__(self) -> None:
        self._agent: Agent | None = None
        self._early: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self._agent is None:
            self._early = number
        else:
            self._agent.interrupt(number)

    def hand_to(self, agent: Agent) -> None:
        """From now on the agent is told; also of what came before."""
        self._agent = agent
        if self._early is not None:
            agent.interrupt(self._early)
