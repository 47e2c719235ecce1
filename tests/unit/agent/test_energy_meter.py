"""Energy of a machine: packages and DRAM alone, over counters that begin anew; what cannot be read is never 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.agent.watch import EVERY_S, EnergyMeter
from scaling.hosts import rapl
from scaling.records.telemetry import MachineEnergy
from tests.support.powercap import COUNTED, DOMAINS, RANGE_UJ, Powercap
from tests.support.scripted_records import close


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tree(tmp_path: Path) -> Powercap:
    return Powercap(tmp_path / "powercap")


def test_packages_and_dram_are_added_and_nothing_else(tree: Powercap, clock: Clock) -> None:
    """A core is inside of its package, psys around all, and a package that is mapped twice is one."""
    assert [counter.path.parent.name for counter in rapl.counters(tree.root)] == sorted(COUNTED)
    meter = EnergyMeter(tree.root, clock)
    meter.start()
    for folder in DOMAINS:
        tree.use(folder, 2_000_000)
    clock.now_s += 4
    meter.pause()
    assert meter.total() == MachineEnergy(joules=6.0, seconds=4.0)


def test_a_counter_that_begins_anew_lost_nothing(tree: Powercap, clock: Clock) -> None:
    """Over 25 s it does so twice, each time between two of the readings of every 10 s."""
    meter = EnergyMeter(tree.root, clock)
    meter.start()
    for _ in range(25):
        tree.use("intel-rapl:1", RANGE_UJ * 8 // 100)
        clock.now_s += 1
        meter.sample()
    meter.pause()
    found = meter.total()
    assert found is not None and EVERY_S == 10
    assert (found.joules, found.seconds) == (close(2 * RANGE_UJ / 1e6), 25.0)


def test_stretches_add_up_and_what_lies_between_them_does_not_count(tree: Powercap, clock: Clock) -> None:
    meter = EnergyMeter(tree.root, clock)
    for _ in range(3):
        meter.start()
        tree.use("intel-rapl:0", 1_000_000)
        clock.now_s += 1
        meter.pause()
        tree.use("intel-rapl:0", 7_000_000)
        clock.now_s += 100
        meter.sample()
    assert meter.total() == MachineEnergy(joules=3.0, seconds=3.0)


@pytest.mark.parametrize("folder", COUNTED)
def test_what_cannot_be_read_is_told_and_never_zero(tree: Powercap, clock: Clock, folder: str) -> None:
    """A part would pass for the whole."""
    path = tree.forbid(folder)
    meter = EnergyMeter(tree.root, clock)
    meter.start()
    clock.now_s += 1
    meter.pause()
    assert meter.total() == MachineEnergy(unreadable=f"{path}: Is a directory")


def test_a_counter_that_vanishes_takes_the_rest_with_it(tree: Powercap, clock: Clock) -> None:
    meter = EnergyMeter(tree.root, clock)
    meter.start()
    clock.now_s += 1
    meter.pause()
    (tree.root / "intel-rapl:0" / "energy_uj").write_text("busy\n")
    meter.start()
    meter.pause()
    found = meter.total()
    assert found is not None and found.joules is None and found.unreadable.endswith("energy_uj: no number: 'busy'")


def test_without_counters_there_is_nothing(tmp_path: Path, clock: Clock) -> None:
    for root in (tmp_path, tmp_path / "nowhere"):
        meter = EnergyMeter(root, clock)
        meter.start()
        clock.now_s += 1
        meter.sample()
        meter.pause()
        assert meter.total() is None


def test_before_any_stretch_there_is_nothing(tree: Powercap, clock: Clock) -> None:
    meter = EnergyMeter(tree.root, clock)
    meter.pause()
    meter.sample()
    assert meter.total() is None
