"""What is read beside a child adds up over the stretches in which its measured windows ran, and is read at no
other time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.agent import watch as watch_module
from scaling.agent.device_probe import DeviceProbe
from scaling.agent.watch import Watch
from scaling.hosts import connections, interfaces, proc
from scaling.quiet import agent
from scaling.quiet.agent import Quiet, Suspicion
from scaling.records.telemetry import CpuTime, Flow, Foreign, Telemetry, Traffic
from tests.support.points import POINT, TASK, changed

STEPS = 7


class World:
    """Counters that stand still but for what the test moves; `calls` is what was read, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.sent_bytes = 0
        self.peers = ["10.0.0.2"]
        self.cpu_s = 0.0
        self.others = 0.0
        self.devices_on = False


class Meter:
    def __init__(self, world: World) -> None:
        self._world = world
        self.others = 0.0
        self._begun_s: float | None = None
        self._steps, self._used_s = 0, 0.0

    def start(self) -> None:
        self._begun_s = self._world.cpu_s

    def end(self, steps: int) -> None:
        if self._begun_s is not None:
            self._steps += steps
            self._used_s += self._world.cpu_s - self._begun_s
            self.others = self._world.others
        self._begun_s = None

    def total(self) -> CpuTime:
        return CpuTime(steps=self._steps, wall_s=1.0, kernel_s=self._used_s, minor_faults=0, major_faults=0)


class Probe:
    interval_s = 1.0

    def __init__(self, world: World) -> None:
        self._world = world

    def start(self) -> None:
        self._world.calls.append("start")

    def sample(self) -> None:
        self._world.calls.append("sample")

    def pause(self) -> None:
        self._world.calls.append("pause")

    def stop(self) -> Telemetry:
        self._world.calls.append("stop")
        return Telemetry(load_1m=1.0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    monkeypatch.setattr(DeviceProbe, "open", lambda *_, **__: Probe(world))
    monkeypatch.setattr(watch_module, "CpuMeter", lambda *_: Meter(world))
    monkeypatch.setattr(interfaces, "read", lambda: world.sent_bytes)
    monkeypatch.setattr(interfaces, "since", _carried)
    monkeypatch.setattr(connections, "read", lambda: dict.fromkeys(world.peers, world.sent_bytes))
    monkeypatch.setattr(connections, "since", _flows)
    yield world


def _carried(before: int, now: int) -> tuple[Traffic, ...]:
    return (Traffic(name="eth0", received_bytes=2 * (now - before), sent_bytes=now - before),)


def _flows(before: dict[str, int], now: dict[str, int]) -> tuple[Flow, ...]:
    sent = {peer: count - before.get(peer, 0) for peer, count in now.items()}
    return tuple(
        Flow(address="10.0.0.1", peer=peer, sent_bytes=sent[peer], busy_s=sent[peer] / 100) for peer in sent
    )


def watch(**fields: Any) -> Watch:
    return Watch(replace(TASK, counts_traffic=True, **fields), os.getpid(), computes=True)


def is_measuring(one: Watch) -> bool:
    return one.measuring


def test_stretches_add_up_and_what_lies_between_them_does_not_count(world: World) -> None:
    one = watch()
    for _ in range(3):
        world.sent_bytes += 1000
        world.cpu_s += 100
        one.begin(STEPS, 0.0)
        world.sent_bytes += 10
        world.cpu_s += 1
        one.done()
        world.sent_bytes += 1  # what a slower rank still had to send
        world.cpu_s += 50
        one.settle()
    telemetry = one.close()
    assert telemetry.traffic == (Traffic(name="eth0", received_bytes=66, sent_bytes=33),)
    assert telemetry.flows == (Flow(address="10.0.0.1", peer="10.0.0.2", sent_bytes=33, busy_s=0.33),)
    assert telemetry.cpu is not None
    # Each stretch has one step more than its windows: the one that is not counted.
    assert (telemetry.cpu.kernel_s, telemetry.cpu.steps) == (3.0, 3 * 7)
    assert telemetry.load_1m == 1.0


def test_a_connection_that_is_gone_counts_in_its_own_stretch_alone(world: World) -> None:
    one = watch()
    world.peers.append("10.0.0.3")
    one.begin(STEPS, 0.0)
    world.sent_bytes += 10
    one.done()
    world.peers.pop()
    one.settle()
    one.begin(STEPS, 0.0)
    world.sent_bytes += 10
    one.settle()
    sent = {flow.peer: flow.sent_bytes for flow in one.close().flows}
    assert sent == {"10.0.0.2": 20, "10.0.0.3": 10}


def test_done_and_settle_are_once_per_stretch(world: World) -> None:
    one = watch()
    one.settle()
    one.begin(STEPS, 0.0)
    assert is_measuring(one)
    one.done()
    assert not is_measuring(one)
    for again in (one.done, one.settle, one.settle, one.done):
        world.sent_bytes += 10
        again()
    assert [call for call in world.calls if call != "stop"] == ["start", "pause"]
    assert one.close().traffic[0].sent_bytes == 20  # until it was settled


@pytest.mark.parametrize(("gap_s", "still_s"), [(0.3, 0.0), (6.0, 6.0)])
def test_an_agent_without_a_turn_while_windows_ran_stood_still(world: World, gap_s: float, still_s: float) -> None:
    one = watch()
    one.look(0.0)
    one.begin(STEPS, 100.0)
    one.sample(100.25)
    one.look(100.25 + gap_s)
    one.done()
    one.sample(500.0)  # between stretches nothing is missed
    assert one.close().still_s == pytest.approx(still_s)


def test_a_suspend_between_the_ends_of_a_stretch_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asleep_s = iter((10.0, 16.0))
    monkeypatch.setattr(proc, "asleep_s", lambda: next(asleep_s))
    one = watch()
    one.begin(STEPS, 0.0)
    one.done()
    assert one.close().suspended_s == 6.0


def test_devices_are_read_only_while_windows_run(world: World) -> None:
    one = watch()
    one.sample(5.0)
    one.begin(STEPS, 10.0)
    for now_s in (10.5, 11.0, 11.5, 12.0):
        one.sample(now_s)
    one.done()
    one.sample(20.0)
    assert world.calls == ["start", "sample", "sample", "pause"]


def test_a_stretch_that_was_broken_off_leaves_what_is_known(world: World) -> None:
    one = watch()
    one.begin(STEPS, 0.0)
    world.sent_bytes += 10
    world.cpu_s += 1
    telemetry = one.close()
    assert telemetry.cpu is not None and telemetry.cpu.kernel_s == 1.0
    assert telemetry.traffic == ()  # the card's counters were not read at its end
    assert telemetry.flows[0].sent_bytes == 10


def test_beside_other_children_no_traffic_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "read", lambda: pytest.fail("read"))
    one = Watch(TASK, os.getpid(), computes=True)
    one.begin(STEPS, 0.0)
    one.settle()
    assert (one.close().traffic, one.close().flows) == ((), ())


def test_who_else_runs_is_looked_for_only_while_the_core_is_slow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    censuses = iter(range(100))
    monkeypatch.setattr(agent, "census", lambda: next(censuses))
    monkeypatch.setattr(agent, "busiest", _busiest)
    quiet = Quiet(TASK)
    one = Watch(TASK, os.getpid(), computes=True, quiet=quiet)
    for suspects in (False, True, True, False):
        if suspects:
            quiet.look()
        one.begin(STEPS, 0.0)
        one.settle()
    assert one.close().foreign == (
        Foreign(name="burner", run_s=6.0, over_s=6.0), Foreign(name="other", run_s=2.0, over_s=6.0),
    )  # fmt: skip
    assert next(censuses) == 4


def _busiest(before: int, now: int) -> tuple[Foreign, ...]:
    assert now == before + 1
    return Foreign(name="other", run_s=1.0, over_s=3.0), Foreign(name="burner", run_s=3.0, over_s=3.0)


@pytest.mark.parametrize("changes", [{}, {"kind": "solo", "world_size": 1}], ids=["each", "solo"])
def test_others_on_its_cpus_while_it_runs_alone_are_suspicious_until_they_are_gone(
    world: World, changes: dict[str, Any]
) -> None:
    suspicion = Suspicion()
    one = alone(suspicion, **changes)
    for world.others, suspicious in ((0.1, False), (0.5, True), (0.5, True), (0.1, False)):
        one.begin(STEPS, 0.0)
        one.done()
        assert suspicion.is_raised(None, again=False) is suspicious
        one.done()
        one.settle()
        assert suspicion.is_raised(None, again=False) is suspicious


@pytest.mark.parametrize(
    "changes", [{"kind": "exchange"}, {"kind": "together"}, {"device": "cuda"}, {"feed": "native"}, {"role": "s"}],
    ids=["exchange", "together", "GPU", "own feed", "helper"],
)  # fmt: skip
def test_where_something_of_the_run_may_be_on_its_cpus_nobody_is_suspicious(
    world: World, changes: dict[str, Any]
) -> None:
    suspicion = Suspicion()
    one = alone(suspicion, **changes)
    world.others = 0.9
    one.begin(STEPS, 0.0)
    one.settle()
    assert not suspicion.is_raised(None, again=False)


def alone(suspicion: Suspicion, role: str = "worker", kind: str = "each", **changes: Any) -> Watch:
    point = changed(POINT, kind=kind, **changes)
    task = replace(TASK, point=point, role=role)
    return Watch(task, os.getpid(), computes=True, quiet=Quiet(task, suspicion))
