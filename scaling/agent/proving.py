"""An agent's part in proving that hosts reach each other: doors for the others, and knocks at theirs."""

from __future__ import annotations

import socket

from scaling.hosts.reach import Attempts, door
from scaling.records.messages import Admit, Admitting, Reach, Reached


class Proving:
    """The doors of one host and the connections that it is making."""

    def __init__(self) -> None:
        self._doors: dict[str, socket.socket] = {}
        self._attempts: dict[str, Attempts] = {}
        self._opened: list[Admitting] = []

    def obey(self, order: Admit | Reach, now_s: float) -> None:
        """Open or close a door, or begin to connect to those of other hosts."""
        if isinstance(order, Reach):
            self._attempts[order.network] = Attempts(order.peers, now_s + order.within_s)
            return
        if old := self._doors.pop(order.network, None):
            old.close()
        if order.address:
            self._opened.append(self._open(order))

    def _open(self, order: Admit) -> Admitting:
        try:
            self._doors[order.network] = door(order.address)
        except OSError as error:
            return Admitting(network=order.network, error=error.strerror or str(error))
        return Admitting(network=order.network, port=self._doors[order.network].getsockname()[1])

    def answers(self, now_s: float) -> list[Admitting | Reached]:
        """Those that are due."""
        ended = {network: attempts.ways(now_s) for network, attempts in self._attempts.items()}
        reached = [Reached(network=network, ways=ways) for network, ways in ended.items() if ways is not None]
        for answer in reached:
            del self._attempts[answer.network]
        opened, self._opened = self._opened, []
        return [*opened, *reached]
