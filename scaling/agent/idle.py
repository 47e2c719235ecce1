"""Traffic of a host's cards while nothing of the launch runs: file systems, monitoring, other users."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from scaling.hosts import interfaces
from scaling.records.telemetry import Traffic

# The median over five stretches ignores a burst within two of them.
STRETCHES = 5


class IdleTraffic:
    """The idle traffic of a host: for each card the rates of its median stretch."""

    def __init__(self) -> None:
        self._before: interfaces.Reading | None = None
        self._began_s = self._stretch_s = 0.0
        self._hearing: list[tuple[tuple[Traffic, ...], float]] = []
        self._rates: dict[str, tuple[float, float]] = {}

    def listen(self, seconds: float, now_s: float) -> None:
        self._before, self._began_s = interfaces.read(), now_s
        self._stretch_s, self._hearing = seconds / STRETCHES, []

    def is_due(self, now_s: float) -> bool:
        """Return True once, when listening is over. Call it often, because it also ends the stretches."""
        if self._before is None or now_s < self._began_s + self._stretch_s:
            return False
        now = interfaces.read()
        self._hearing.append((interfaces.since(self._before, now), now_s - self._began_s))
        if len(self._hearing) < STRETCHES:
            self._before, self._began_s = now, now_s
            return False
        self._before, self._rates = None, _rates(self._hearing)
        return True

    def over(self, seconds: float) -> tuple[Traffic, ...]:
        """Return the idle traffic of so many seconds by card; empty if no listening has ended."""
        return tuple(
            Traffic(name=name, received_bytes=round(seconds * received), sent_bytes=round(seconds * sent))
            for name, (received, sent) in self._rates.items()
        )


def _rates(stretches: list[tuple[tuple[Traffic, ...], float]]) -> dict[str, tuple[float, float]]:
    """Bytes per second that each card received and sent in its median stretch."""
    by_card: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for carried, seconds in stretches:
        for one in carried:
            by_card[one.name][0].append(one.received_bytes / seconds)
            by_card[one.name][1].append(one.sent_bytes / seconds)
    return {name: (median(received), median(sent)) for name, (received, sent) in by_card.items()}
