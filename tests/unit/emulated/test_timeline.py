"""The time of an emulated device: late wake-ups, dilation, waiting for others."""

from __future__ import annotations

import pytest

from scaling.tools.emulated.timeline import Timeline


class Clock:
    """Sleeping takes what it is told and `late_s` more."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.late_s = late_s
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds + self.late_s


def test_late_wake_ups_do_not_add_up() -> None:
    clock = Clock(late_s=0.004)
    device = Timeline(1.0, clock, clock.sleep)
    for _ in range(100):
        device.spend(0.010)
    assert clock.now_s == pytest.approx(100 + 100 * 0.010 + 0.004)


def test_times_are_dilated() -> None:
    clock = Clock()
    Timeline(4.0, clock, clock.sleep).spend(0.5)
    assert clock.now_s == pytest.approx(102.0)


def test_what_is_too_short_to_sleep_is_left_to_the_next() -> None:
    clock = Clock()
    device = Timeline(1.0, clock, clock.sleep)
    for _ in range(30):
        device.spend(0.00005)
    assert len(clock.slept) < 10
    device.finish()
    assert clock.now_s == pytest.approx(100 + 30 * 0.00005)


def test_a_device_that_waits_for_others_begins_later() -> None:
    clock = Clock()
    device = Timeline(1.0, clock, clock.sleep)
    device.spend(1.0)
    device.ask()
    clock.now_s += 0.5
    device.granted()
    device.spend(1.0)
    assert clock.now_s == pytest.approx(102.5)


def test_what_is_there_already_is_not_waited_for() -> None:
    clock = Clock(late_s=0.004)
    device = Timeline(1.0, clock, clock.sleep)
    for _ in range(10):
        device.ask()
        clock.now_s += 0.0001
        device.granted()
        device.spend(0.1)
    assert clock.now_s == pytest.approx(101.004)


def test_nobody_begins_before_all_have_met() -> None:
    clock = Clock()
    device = Timeline(1.0, clock, clock.sleep)
    clock.now_s += 0.0005
    device.meet()
    device.spend(1.0)
    assert clock.now_s == pytest.approx(101.0005)


def test_lateness_is_made_up_for_and_a_pause_is_not() -> None:
    clock = Clock()
    device = Timeline(2.0, clock, clock.sleep)
    clock.now_s += 0.9
    device.begin(1.0)
    device.spend(1.0)
    assert clock.now_s == pytest.approx(102.0)
    clock.now_s += 1.1
    device.begin(1.0)
    device.spend(1.0)
    assert clock.now_s == pytest.approx(105.1)
