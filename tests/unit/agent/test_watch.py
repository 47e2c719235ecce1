"""When an agent reads its meters, listens to idle cards, and cuts a log."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.agent import watch as watch_module
from scaling.agent.agent import KEPT_BYTES, LIMIT_BYTES, LogBound, Supervisor
from scaling.agent.watch import STRETCHES, IdleTraffic, Watch
from scaling.frameworks.base import Helper, Traits
from scaling.hosts import connections, interfaces, proc
from scaling.hosts.interfaces import Counter
from scaling.plan.placement import Slot
from scaling.plan.tasks import helper_task, rank_tasks, worker_tasks
from scaling.quiet import agent
from scaling.quiet.agent import Quiet, Suspicion
from scaling.records.events import Announce, Exit, Ready, Window
from scaling.records.task import Clocks, Finish, Run, Task
from scaling.records.telemetry import CpuTime, Flow, Foreign, Sample, Telemetry, Traffic
from tests.support.fake_nvml import FakeGpu, Install
from tests.support.points import POINT, TASK, changed, make_point
from tests.support.supervised import Silent

# What is read beside a child adds up over the stretches in which its measured windows ran, and is read at no
# other time.

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

    masks, affinity_cpus, percent, machine_percent = frozenset[tuple[int, ...]](), None, None, None

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


class Gpu:
    energy_is_integral, energy_j, max_sm_clock_mhz, samples = False, None, None, ()

    def __init__(self, world: World) -> None:
        self._world = world

    def start(self) -> None:
        self._world.calls.append("start")

    def read(self) -> None:
        self._world.calls.append("sample")

    def pause(self) -> None:
        self._world.calls.append("pause")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    monkeypatch.setattr(watch_module.GpuMeter, "open", lambda *_: Gpu(world))
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


def watch() -> Watch:
    point = changed(POINT, device="cuda")
    return Watch(replace(TASK, counts_traffic=True, point=point, device_indices=(0,)), os.getpid(), computes=True)


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
    assert world.calls == ["start", "pause"]
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


@pytest.mark.parametrize(("later_s", "suspended_s"), [(16.0, 6.0), (9.9, 0.0)])
def test_a_suspend_between_the_ends_of_a_stretch_counts(
    world: World, monkeypatch: pytest.MonkeyPatch, later_s: float, suspended_s: float
) -> None:
    """A process that waits for a core between its two clock readings reads too little."""
    asleep_s = iter((10.0, later_s))
    monkeypatch.setattr(proc, "asleep_s", lambda: next(asleep_s))
    one = watch()
    one.begin(STEPS, 0.0)
    one.done()
    assert one.close().suspended_s == suspended_s


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


@pytest.mark.parametrize(
    ("changes", "is_alone"),
    [
        ({}, True),
        ({"kind": "solo", "world_size": 1}, True),
        # Where something of the run may be on its CPUs nobody is suspicious.
        *(
            (changes, False)
            for changes in (
                {"kind": "exchange"}, {"kind": "together"}, {"device": "cuda"}, {"feed": "native"}, {"role": "s"},
            )
        ),
    ],
)  # fmt: skip
def test_others_on_its_cpus_while_it_runs_alone_are_suspicious_until_they_are_gone(
    world: World, changes: dict[str, Any], is_alone: bool
) -> None:
    suspicion = Suspicion()
    one = alone(suspicion, **changes)
    for world.others, suspicious in ((0.1, False), (0.9, True), (0.5, True), (0.1, False)):
        one.begin(STEPS, 0.0)
        one.done()
        assert suspicion.is_raised(None, again=False) is (suspicious and is_alone)
        one.settle()
        assert suspicion.is_raised(None, again=False) is (suspicious and is_alone)


def alone(suspicion: Suspicion, role: str = "worker", kind: str = "each", **changes: Any) -> Watch:
    point = changed(POINT, kind=kind, **changes)
    task = replace(TASK, point=point, role=role)
    return Watch(task, os.getpid(), computes=True, quiet=Quiet(task, suspicion))


# Whose GPUs an agent reads while windows are measured: a rank's, a node's, a computing helper's.

DEVICE_WATCH_POINT = make_point(
    strategy="fake:a", kind="exchange", world_size=3, round=0, model="digits-cnn", data="digits",
    device="cuda", batch_rule="weak", batch_size=32,
)  # fmt: skip
READY = Ready(import_s=1.0, build_s=1.0, parameters=1, gradient_bytes=4, device_name="x")
MEASURE = Run(windows=1, steps=1, measured=True)
WINDOW = Window(index=0, measured=True, steps=1, samples=1, start_s=0.0, end_s=1.0, end_unix_s=0.0)
THERMAL = 0x20
USED_J = (0.5, 2.0, 8.0, 32.0)


@pytest.fixture
def gpus(install: Install) -> list[FakeGpu]:
    """Four of one host, of which the third is throttled; a point of three ranks takes the first three."""
    four = [FakeGpu(uuid=f"GPU-{bus}", bus=bus, throttle=THERMAL if bus == 2 else 0) for bus in range(4)]
    install(*four)
    return four


def tasks() -> tuple[Task, ...]:
    slots = [
        Slot(launch_rank=rank, host="node1", local_rank=rank, cpus=(), threads=1, device_index=rank)
        for rank in range(3)
    ]
    made = rank_tasks(
        DEVICE_WATCH_POINT, slots, slots[:1], {}, attempt=1, retry=0, seed=1, clocks=Clocks(), logs="logs"
    )
    return tuple(replace(task, counts_traffic=False) for task in made)


def watched(task: Task, gpus: Sequence[FakeGpu]) -> Telemetry:
    """What its agent read beside a child of this task, while each GPU used its energy of USED_J."""
    child: Any = SimpleNamespace(task=task, pid=os.getpid(), tell=lambda _: None, resume=lambda: None, reap=Exit)
    supervisor = Supervisor(child, {}, 0.0)
    is_worker = task.role == "worker"
    supervisor.heard(READY if is_worker else Announce(values={}), 1.0)
    (supervisor.tell if is_worker else supervisor.overhear)(MEASURE, 2.0)
    for gpu, used_j in zip(gpus, USED_J, strict=True):
        gpu.energy_mj += round(1000 * used_j)
    if is_worker:
        supervisor.heard(WINDOW, 3.0)
    else:
        supervisor.overhear(Finish(), 3.0)
    return supervisor.ended().telemetry


def read(telemetry: Telemetry) -> set[int | None]:
    return {sample.device_index for sample in telemetry.samples}


def throttled(telemetry: Telemetry) -> set[tuple[int | None, str]]:
    return {(sample.device_index, reason) for sample in telemetry.samples for reason in sample.throttle}


def test_a_rank_s_worker_is_watched_on_its_own_gpu(gpus: list[FakeGpu]) -> None:
    telemetry = watched(worker_tasks(tasks(), Traits())[1], gpus)
    assert (read(telemetry), telemetry.energy_j, throttled(telemetry)) == ({1}, 2.0, set())


def test_a_worker_that_drives_a_node_is_watched_on_all_its_gpus(gpus: list[FakeGpu]) -> None:
    (task,) = worker_tasks(tasks(), Traits(drives="node"))
    telemetry = watched(task, gpus)
    assert (read(telemetry), telemetry.energy_j) == ({0, 1, 2}, 10.5)
    assert throttled(telemetry) == {(2, "sw thermal")}
    assert [sample.device_index for sample in telemetry.samples] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("lacks", "visible", "indices"),
    [
        ({"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"}, "0,1,2", {0, 1, 2}),
        (set(), "0,1", {0, 1}),
    ],
)
def test_a_part_of_the_energy_does_not_pass_for_the_whole(
    gpus: list[FakeGpu], monkeypatch: pytest.MonkeyPatch, lacks: set[str], visible: str, indices: set[int]
) -> None:
    gpus[1].lacks = frozenset(lacks)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (task,) = worker_tasks(tasks(), Traits(drives="node"))
    telemetry = watched(task, gpus)
    assert (read(telemetry), telemetry.energy_j) == (indices, None)


def test_helpers_that_compute_are_watched_on_their_gpus_and_their_coordinator_is_not(gpus: list[FakeGpu]) -> None:
    """So that no GPU counts twice."""
    (coordinator,) = worker_tasks(tasks(), Traits(drives="point"))
    helpers = [helper_task(tasks(), Helper(name=f"trainer-{r}", rank=r, computes=True)) for r in range(3)]
    alone = watched(coordinator, gpus)
    assert (alone.samples, alone.energy_j) == ((), None)
    found = [watched(helper, gpus) for helper in helpers]
    assert [read(telemetry) for telemetry in found] == [{0}, {1}, {2}]
    assert [telemetry.energy_j for telemetry in found] == [0.5, 2.0, 8.0]
    assert [throttled(telemetry) for telemetry in found] == [set(), set(), {(2, "sw thermal")}]


@pytest.mark.parametrize("helper", [Helper(name="server-0", server=0), Helper(name="scheduler")])
def test_a_server_is_watched_for_its_cpu_alone(gpus: list[FakeGpu], helper: Helper) -> None:
    telemetry = watched(helper_task(tasks(), helper), gpus)
    assert (telemetry.samples, telemetry.energy_j) == ((), None)
    assert telemetry.cpu_percent is not None


def test_a_sample_of_an_older_record_names_no_device() -> None:
    old = b'[1.5,98.0,650.5,1755.0,1024,61.0,["sw thermal"]]'
    sample = msgspec.json.decode(old, type=Sample)
    assert (sample.device_index, sample.temperature_c, sample.throttle) == (None, 61.0, ("sw thermal",))


# What a host's cards carry while nothing runs, as an agent hears it.

LISTENED_S = 0.5
# Between two looks of an agent: a little longer than a stretch.
LOOK_S = 1.001 * LISTENED_S / STRETCHES


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter]:
    """What the kernel would say of the cards."""
    found = {"eth0": Counter(1000, 2000)}
    monkeypatch.setattr(interfaces, "read", lambda: dict(found))
    return found


def heard(counters: dict[str, Counter], stretches: Sequence[tuple[int, int]], name: str = "eth0") -> IdleTraffic:
    """After so many bytes in each stretch, received and sent; it is over with the last of them."""
    idle = IdleTraffic()
    idle.listen(LISTENED_S, now_s=10.0)
    for number, (received, sent) in enumerate(stretches, 1):
        before = counters[name]
        counters[name] = Counter(before.received_bytes + received, before.sent_bytes + sent)
        assert idle.is_due(10.0 + number * LOOK_S) is (number == len(stretches))
    return idle


USUAL, BURST, RESET = (20, 80), (20, 80 + 5_500_000), (-(10**9), -(10**9))


@pytest.mark.parametrize(
    "stretches",
    [
        [USUAL] * STRETCHES,
        # A burst, wherever it falls, also over the edge of two stretches: its 11 MB would be scaled to hundreds.
        *([*[USUAL] * first, BURST, BURST, *[USUAL] * (STRETCHES - first - 2)] for first in range(STRETCHES - 1)),
        # A counter that begins anew costs one stretch.
        [USUAL, RESET, USUAL, USUAL, USUAL],
    ],
)
def test_the_median_stretch_is_scaled_to_any_time(
    counters: dict[str, Counter], stretches: list[tuple[int, int]]
) -> None:
    counters["eth0"] = Counter(10**9, 10**9)
    idle = heard(counters, stretches)
    assert not idle.is_due(11.0)
    for seconds in (2.0, 30.0):
        (found,) = idle.over(seconds)
        assert (found.received_bytes, found.sent_bytes) == pytest.approx((200 * seconds, 800 * seconds), rel=0.01)


def test_a_stretch_that_lasted_longer_counts_by_its_own_time(counters: dict[str, Counter]) -> None:
    """An agent that was kept from looking takes what came meanwhile for no more per second."""
    idle, now_s = IdleTraffic(), 10.0
    idle.listen(LISTENED_S, now_s)
    assert not idle.is_due(now_s + LOOK_S / 2)
    assert idle.over(2.0) == ()
    for number in range(1, STRETCHES + 1):
        now_s += number * LOOK_S
        counters["eth0"] = Counter(1000, 2000 + round(1e6 * (now_s - 10.0)))
        assert idle.is_due(now_s) is (number == STRETCHES)
    (found,) = idle.over(3.0)
    assert found.sent_bytes == pytest.approx(3e6, rel=1e-3)


def test_who_listens_again_forgets_what_was_heard_before(counters: dict[str, Counter]) -> None:
    idle = heard(counters, [USUAL] * STRETCHES)
    before = idle.over(2.0)
    idle.listen(LISTENED_S, now_s=20.0)
    assert idle.over(2.0) == before
    for number in range(1, STRETCHES + 1):
        assert idle.is_due(20.0 + number * LOOK_S) is (number == STRETCHES)
    assert idle.over(2.0) == (Traffic(name="eth0", received_bytes=0, sent_bytes=0),)


def test_who_never_listened_knows_of_nothing() -> None:
    assert IdleTraffic().over(2.0) == ()


# A log that a child floods is cut to its beginning, and what comes after is appended.


def flooded(path: Path, size_bytes: int = LIMIT_BYTES + 1) -> Path:
    """A log that begins with a line; the rest of it takes no room."""
    with path.open("wb") as log:
        log.write(b"first line\n")
        log.truncate(size_bytes)
    return path


def test_a_flooded_log_keeps_its_beginning_and_what_comes_next(tmp_path: Path) -> None:
    path = flooded(tmp_path / "log")
    bound = LogBound(str(path))
    with path.open("ab", buffering=0) as writer:
        bound.look(0.0)
        writer.write(b"last line\n")
    text = path.read_bytes()
    assert text.startswith(b"first line\n")
    assert text[KEPT_BYTES:] == b"\n[scaling: %d bytes of this log were dropped here]\nlast line\n" % (
        LIMIT_BYTES + 1 - KEPT_BYTES
    )
    assert bound.dropped_bytes == LIMIT_BYTES + 1 - KEPT_BYTES


def test_cpu_time_is_of_all_steps_of_a_command_and_of_those_that_lead_to_its_first_window() -> None:
    child: Any = SimpleNamespace(task=TASK, pid=os.getpid(), tell=lambda _: None, resume=lambda: None, reap=Exit)
    one = Supervisor(child, {}, 0.0)
    one.heard(READY, 1.0)
    one.tell(Run(windows=3, steps=4, measured=True, lead=2), 2.0)
    one.heard(replace(WINDOW, index=2), 3.0)
    cpu = one.ended().telemetry.cpu
    assert cpu is not None
    assert cpu.steps == 3 * 4 + 2


def test_others_are_let_be_and_it_is_looked_at_once_a_second(tmp_path: Path) -> None:
    for path in (flooded(tmp_path / "log", LIMIT_BYTES), tmp_path / "none", Path("/dev/null")):
        bound = LogBound(str(path))
        bound.look(10.0)
        assert bound.dropped_bytes == 0
    assert (tmp_path / "log").stat().st_size == LIMIT_BYTES
    bound = LogBound(str(flooded(tmp_path / "log", LIMIT_BYTES)))
    for now_s, is_cut in ((10.0, False), (10.9, False), (11.0, True)):
        bound.look(now_s)
        assert bool(bound.dropped_bytes) is is_cut
        flooded(tmp_path / "log")


def test_the_agent_tells_how_much_was_dropped(tmp_path: Path) -> None:
    child = Silent()
    child.task = replace(child.task, log=str(tmp_path / "log"))
    one = Supervisor(child, {}, 0.0)
    one.attend(1.0)
    flooded(tmp_path / "log")
    assert one.ended().log_dropped_bytes == LIMIT_BYTES + 1 - KEPT_BYTES


# ---------------------------------------------------------------- errors of cards


def test_errors_of_a_card_add_up_over_stretches(
    counters: dict[str, Counter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "read", dict)
    watch = Watch(replace(TASK, counts_traffic=True), os.getpid(), computes=False)
    for errors in ({"rx_errors": 2}, {"rx_errors": 5, "tx_dropped": 1}):
        watch.begin(1, 10.0)
        counters["eth0"] = Counter(1000, 2000, errors=errors)
        watch.settle()
        counters["eth0"] = Counter(1000, 2000, errors={"rx_errors": 0, "tx_dropped": 0})
    (found,) = watch.close().traffic
    assert found.errors == {"rx_errors": 5, "tx_dropped": 1}


@pytest.mark.parametrize(
    ("keeps", "seen", "left"),
    [
        (False, Exit(), []),
        (True, Exit(), ["7.log", "7.log.nccl.9"]),
        (False, Exit(code=1), ["7.log", "7.log.nccl.9"]),
    ],
)
def test_the_log_of_a_child_that_ended_well_is_removed_if_the_task_says_so(
    tmp_path: Path, keeps: bool, seen: Exit, left: list[str]
) -> None:
    child = Silent()
    child.task, child.seen = replace(child.task, log=str(tmp_path / "7.log"), keeps_log=keeps), seen
    for name in ("7.log", "7.log.nccl.9"):
        (tmp_path / name).write_text("said")
    Supervisor(child, {}, 0.0).ended()
    assert sorted(path.name for path in tmp_path.iterdir()) == left
