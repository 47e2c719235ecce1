"""How far emulated devices shrink their gradients and dilate their time, as this machine has cores."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.emulated import layers, scale
from scaling.emulated.device import Timeline
from scaling.emulated.scale import Load, Setting


class Clock:
    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.late_s = late_s
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds + self.late_s


Act = tuple[str, float] | tuple[str]
TIMELINES: dict[str, tuple[float, float, list[Act], float]] = {
    "late wake-ups do not add up": (1.0, 0.004, [("spend", 0.010)] * 100, 1.004),
    "times are dilated": (4.0, 0.0, [("spend", 0.5)], 2.0),
    "too short a sleep is left to the next": (1.0, 0.0, [*[("spend", 0.00005)] * 30, ("finish",)], 0.0015),
    "a device that waits for others begins later": (
        1.0, 0.0, [("spend", 1.0), ("ask",), ("wait", 0.5), ("granted",), ("spend", 1.0)], 2.5,
    ),
    "what is there already is not waited for": (
        1.0, 0.004, [("ask",), ("wait", 0.0001), ("granted",), ("spend", 0.1)] * 10, 1.004,
    ),
    "nobody begins before all have met": (1.0, 0.0, [("wait", 0.0005), ("meet",), ("spend", 1.0)], 1.0005),
    "lateness is made up for": (2.0, 0.0, [("wait", 0.9), ("begin", 1.0), ("spend", 1.0)], 2.0),
    "a pause is not": (
        2.0, 0.0, [("spend", 1.0), ("wait", 1.1), ("begin", 1.0), ("spend", 1.0)], 5.1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TIMELINES)
def test_a_device_takes_its_time(name: str) -> None:
    dilate, late_s, acts, seconds = TIMELINES[name]
    clock = Clock(late_s)
    device = Timeline(dilate, clock, clock.sleep)
    for act, *with_ in acts:
        if act == "wait":
            clock.now_s += with_[0]
        else:
            getattr(device, act)(*with_)
    assert clock.now_s == pytest.approx(100 + seconds)
    assert len(clock.slept) < 10 or not name.startswith("too short")


RESNET = Load(
    gradient_bytes=102_228_128, tail_bytes=9_700_000, layers=54, step_s=0.292, world_size=16, ranks=16, cores=2
)


def test_what_is_chosen_leaves_a_core_idle() -> None:
    for ranks, size, step_s in product((1, 2, 4, 8, 16, 64), (4e6, 102e6, 550e6), (0.05, 0.3, 1.2)):
        some = {"gradient_bytes": int(size), "tail_bytes": int(size / 5), "step_s": step_s}
        load = replace(RESNET, **some, world_size=ranks, ranks=ranks)
        found = scale.setting([load])
        assert load.cores_in_use(found.shrink, found.dilate) <= load.budget <= 1.0
        assert load.needed_dilate(found.shrink) <= found.dilate * (1 + 1e-6)
        assert 1 <= found.shrink <= scale.MOST_SHRINK


def test_the_last_bucket_is_not_moved_too_slowly() -> None:
    """It shows in full: a model whose gradients all go out at the end needs more of both."""
    at_the_end = replace(RESNET, tail_bytes=RESNET.gradient_bytes)
    assert scale.setting([at_the_end]).dilate > scale.setting([replace(RESNET, tail_bytes=1)]).dilate
    # Links that are slower than this machine hide that.
    assert replace(at_the_end, link_bits_per_s=1e9).needed_dilate(10.0) < at_the_end.needed_dilate(10.0)


def googlenet(link_bits_per_s: float, step_s: float) -> Load:
    """16 P100s on two cores."""
    gradients, tail = layers.gradient_bytes("googlenet"), layers.tail_bytes("googlenet")
    of = replace(RESNET, gradient_bytes=gradients, tail_bytes=tail, layers=58)
    return replace(of, step_s=step_s, link_bits_per_s=link_bits_per_s)


@pytest.mark.parametrize("step_s", [144 / 220.0, 36 / 182.5])
def test_a_fast_network_is_told_from_a_slow_one(step_s: float) -> None:
    """GoogLeNet's last bucket takes 3.6 ms at 100 Gb/s, 35.8 ms at 10 Gb/s; this machine took 32 ms once."""
    fast, slow = googlenet(1e11, step_s), googlenet(1e10, step_s)
    assert [fast.tail_wire_s, slow.tail_wire_s] == pytest.approx([3.58e-3, 35.8e-3], rel=0.01)
    found = scale.setting([fast])
    emulated = [max(load.tail_wire_s, load.tail_s(found.shrink, found.dilate)) / step_s for load in (fast, slow)]
    wired = [load.tail_wire_s / step_s for load in (fast, slow)]
    for one, true in zip(emulated, wired, strict=True):
        assert 0 <= one - true <= 0.005
    assert fast.late(found.shrink, found.dilate) <= 0.005
    assert slow.late(found.shrink, found.dilate) == 0.0


def test_what_is_given_may_be_too_little_and_then_the_error_is_told() -> None:
    load = googlenet(1e11, 144 / 220.0)
    assert load.late(8.5, 3.0) == pytest.approx(0.0453, abs=1e-3)


def test_a_setting_serves_all_world_sizes() -> None:
    short, long = replace(RESNET, step_s=0.05), replace(RESNET, world_size=2, ranks=2)
    assert scale.setting([short, long]) == scale.setting([short])
    assert scale.setting([long]).dilate < scale.setting([short]).dilate


@pytest.mark.parametrize("changes", [{"world_size": 1, "ranks": 1}, {"link_bits_per_s": 1e8}])
def test_what_leaves_the_machine_time_need_not_shrink(changes: dict[str, Any]) -> None:
    assert scale.setting([replace(RESNET, **changes)]) == Setting(shrink=1.0, dilate=1.0)


def test_the_one_that_is_given_stands_and_the_other_follows() -> None:
    assert scale.setting([RESNET], shrink=3.0, dilate=7.0) == Setting(shrink=3.0, dilate=7.0)
    unshrunken = scale.setting([RESNET], shrink=1.0)
    assert unshrunken.dilate > scale.setting([RESNET]).dilate
    assert RESNET.cores_in_use(1.0, unshrunken.dilate) <= RESNET.budget
    slow = scale.setting([RESNET], dilate=80.0)
    assert slow.shrink < scale.setting([RESNET]).shrink
    assert RESNET.cores_in_use(slow.shrink, 80.0) <= RESNET.budget


def test_a_strategy_that_polls_needs_more_time() -> None:
    """Where the average counts, and not the last bucket: over links that take long for it."""
    cores = frameworks.load("torch:horovod").traits("torch:horovod").polling_cores
    slow = replace(RESNET, tail_bytes=RESNET.gradient_bytes, link_bits_per_s=5e9)
    polling = replace(slow, polling=cores)
    found = scale.setting([polling])
    assert found.dilate > scale.setting([slow]).dilate
    assert polling.cores_in_use(found.shrink, found.dilate) <= polling.budget


@pytest.mark.parametrize(
    ("value", "expected"), [(1.0, 1.0), (1.01, 1.5), (3.1, 3.5), (10.0, 10.0), (123.0, 130.0)]
)
def test_settings_are_round_numbers(value: float, expected: float) -> None:
    assert scale.rounded_up(value) == pytest.approx(expected)
