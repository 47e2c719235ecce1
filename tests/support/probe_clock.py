"""A clock for the device probe that moves only when told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scaling.agent import device_probe


class ProbeClock:
    """Stands where the probe looks for `time`."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def time(self) -> float:
        return self.now_s

    monotonic = time


@contextmanager
def replaced() -> Iterator[ProbeClock]:
    """The probe's clock, while inside."""
    clock = ProbeClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_probe, "time", clock)
        yield clock
