"""What a host's cards carry while nothing of the launch runs: file systems, monitoring, other people."""

from __future__ import annotations

from scaling.hosts import interfaces
from scaling.records.telemetry import Traffic


class IdleTraffic:
    """Listens once in a while; `over` then says what any stretch of time would have carried anyway."""

    def __init__(self) -> None:
        self._before: interfaces.Reading | None = None
        self._began_s = self._until_s = 0.0
        self._heard: tuple[Traffic, ...] = ()
        self._heard_s = 0.0

    def listen(self, seconds: float, now_s: float) -> None:
        """Begin to listen."""
        self._before = interfaces.read()
        self._began_s, self._until_s = now_s, now_s + seconds

    def is_due(self, now_s: float) -> bool:
        """Whether listening is over; it is then noted what was heard, once."""
        if self._before is None or now_s < self._until_s:
            return False
        self._heard = interfaces.since(self._before, interfaces.read())
        self._heard_s = now_s - self._began_s
        self._before = None
        return True

    def over(self, seconds: float) -> tuple[Traffic, ...]:
        """What the cards would carry in so many seconds; nothing where nobody has listened."""
        if not self._heard_s:
            return ()
        part = seconds / self._heard_s
        return tuple(
            Traffic(
                name=one.name,
                received_bytes=round(part * one.received_bytes),
                sent_bytes=round(part * one.sent_bytes),
            )
            for one in self._heard
        )
