"""How far emulated devices shrink their gradients and dilate their time, as this machine has cores."""

from __future__ import annotations

from itertools import product

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
    return Load(
        gradient_bytes=layers.gradient_bytes("googlenet"), tail_bytes=layers.tail_bytes("googlenet"), layers=58,
        step_s=step_s, world_size=16, ranks=16, cores=2, link_bits_per_s=link_bits_per_s,
    )  # fmt: skip


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


def test_a_device_alone_need_not_shrink() -> None:
    alone = Load(
        gradient_bytes=102_228_128, tail_bytes=10_000_000, layers=54, step_s=0.3, world_size=1, ranks=1, cores=2
    )
    assert scale.setting([alone]) == Setting(shrink=1.0, dilate=1.0)


def test_both_are_used_where_one_would_not_do() -> None:
    found = scale.setting([RESNET])
    assert found.shrink > 1
    assert found.dilate > 1


def test_the_one_that_is_given_stands_and_the_other_follows() -> None:
    assert scale.setting([RESNET], shrink=3.0, dilate=7.0) == Setting(shrink=3.0, dilate=7.0)
    unshrunken = scale.setting([RESNET], shrink=1.0)
    assert unshrunken.dilate > scale.setting([RESNET]).dilate
    assert RESNET.cores_in_use(1.0, unshrunken.dilate) <= RESNET.budget
    slow = scale.setting([RESNET], dilate=80.0)
    assert slow.shrink < scale.setting([RESNET]).shrink
    assert RESNET.cores_in_use(slow.shrink, 80.0) <= RESNET.budget


def test_a_slow_link_leaves_the_machine_more_time() -> None:
    assert scale.setting([replace(RESNET, link_bits_per_s=1e8)]) == Setting(shrink=1.0, dilate=1.0)


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
