"""Folding events: the cause of a failed point, how a child ended, what a record keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from signal import SIGABRT, SIGBUS, SIGKILL, SIGSEGV, SIGTERM
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.records.events import (
    Announce,
    Ended,
    Error,
    Event,
    Exit,
    Failed,
    Finished,
    Hello,
    Ready,
    Result,
    Window,
)
from scaling.records.messages import Report
from scaling.records.point import Kind
from scaling.records.task import Finish, Run
from scaling.records.telemetry import Foreign, Sample, Telemetry
from scaling.sweep.ended import Evidence, how_it_ended
from scaling.sweep.outcome import cause_of, record_of
from scaling.sweep.state import Ahead, ChildState, PointState, ahead, commanded, failing, fold, part
from tests.support.golden import check_golden
from tests.support.golden_rows import figures
from tests.support.points import POINT, TASK
from tests.support.scripted_points import CRASH, measuring, point, ready, starting, warming
from tests.support.supervised import ended_by_agent

# Folding events: what is the cause when several ranks fail, and what a record keeps.

READY = Ready(import_s=1.0, build_s=1.0, parameters=10, gradient_bytes=40, device_name="x")
RESULT = Result(digest="d", peak_memory_bytes=0, peak_rss_bytes=1)
GONE = Error(cause="error", message="RuntimeError: the ring broke", may_follow=True)
EXITED = Exit(code=1, log_tail="Traceback")
ABORTED, KILLED, CANCELLED = Exit(code=-SIGABRT), Exit(code=-SIGKILL), ended_by_agent("cancelled", "because")


def start() -> PointState:
    hosts = ("node1", "node2")
    tasks = [replace(TASK, rank=rank, hosts=hosts, log=f"log.{rank}") for rank in range(2)]
    return PointState(
        point=replace(POINT, world_size=2), ranks=tuple(ChildState(task=task) for task in tasks), expected=1,
        started_s=10.0, started_unix_s=1e9,
    )  # fmt: skip


def with_helper(state: PointState, role: str = "server") -> PointState:
    return replace(state, helpers=(ChildState(task=replace(state.ranks[0].task, role=role)),))


def folded(state: PointState, *said: tuple[int, Event], role: str = "worker") -> PointState:
    for rank, event in said:
        state = fold(state, Report(attempt=1, rank=rank, role=role, event=event))
    return state


def window(index: int = 0, *, measured: bool = True) -> Window:
    return Window(
        index=index, measured=measured, steps=2, samples=64, start_s=1.0, end_s=2.0, end_unix_s=1e9, loss=0.5
    )


def measured() -> PointState:
    state = folded(start(), (0, Hello(pid=7, affinity=(0,))), (0, READY), (1, READY))
    assert state.ready == 2
    state = folded(commanded(state, Run(windows=1, steps=2, measured=False)), (0, window(measured=False)))
    assert not state.chunk_complete
    state = folded(state, (1, window(measured=False)))
    assert state.chunk_complete
    state = commanded(state, Run(windows=1, steps=2, measured=True))
    assert not state.chunk_complete
    state = folded(state, (0, window()), (1, window()))
    return commanded(state, Finish())


def test_a_point_that_goes_well() -> None:
    state = folded(measured(), (0, RESULT), (1, RESULT), (0, Ended()), (1, Ended()))
    assert state.phase == "ended"
    found = record_of(state, ended_s=15.0)
    assert found.outcome == Finished()
    assert found.wall_s == 5.0
    assert [(rank.host, len(rank.warmup), len(rank.windows)) for rank in found.ranks] == [
        ("node1", 1, 1),
        ("node2", 1, 1),
    ]
    assert found.warnings == ()


def test_the_first_failure_is_the_cause_and_brings_its_log() -> None:
    error = Error(cause="oom", message="MemoryError")
    cancelled = ended_by_agent("cancelled", "another rank failed first")
    state = folded(start(), (1, error), (1, Ended(exit=EXITED)), (0, Ended(exit=cancelled)))
    found = record_of(state, ended_s=11.0)
    assert found.outcome == Failed(
        cause="oom", message="MemoryError", rank=1, host="node2", log="log.1", log_tail="Traceback"
    )
    assert [getattr(rank.outcome, "cause", None) for rank in found.ranks] == ["cancelled", "oom"]


def test_other_digests_void_a_synchronous_point_only() -> None:
    other = replace(RESULT, digest="e")
    state = folded(measured(), (0, RESULT), (1, other), (0, Ended()), (1, Ended()))
    outcome = record_of(state, ended_s=11.0).outcome
    assert isinstance(outcome, Failed)
    assert outcome.cause == "digest"
    assert record_of(replace(state, synchronous=False), ended_s=11.0).outcome == Finished()


def test_a_helper_announces_and_its_death_is_the_points() -> None:
    waiting = with_helper(start())
    assert waiting.waits_for_helpers
    state = folded(waiting, (0, Announce(values={"SERVER": "a:1"})), role="server")
    assert (state.waits_for_helpers, state.announced) == (False, {"SERVER": "a:1"})
    died = folded(state, (0, Ended(exit=KILLED)), role="server")
    assert died.failure is not None
    assert died.failure.message == "helper server: ended by SIGKILL"
    left = folded(waiting, (0, Ended()), role="server")
    assert left.failure is not None
    assert "before it announced itself" in left.failure.message
    over = folded(with_helper(measured()), (0, Ended(exit=KILLED)), role="server")
    assert over.failure is None  # it is ended with the point


def test_a_point_is_ready_once_its_helpers_can_be_reached_too() -> None:
    """Also where workers were there first: nothing of a helper is read before it announces itself."""
    (helper,) = with_helper(start()).helpers
    state = replace(start(), helpers=(replace(helper, awaited=False),))
    assert not state.waits_for_helpers
    state = folded(state, (0, READY), (1, READY))
    assert not state.all_ready
    assert folded(state, (0, Announce(values={})), role="server").all_ready


def test_a_server_that_was_ended_with_its_point_ended_well() -> None:
    ended = Ended(exit=ended_by_agent("cancelled", "the point is over"), environ={"A": "b"})
    state = folded(with_helper(measured()), (0, Announce(values={"X": "1"})), (0, ended), role="server")
    (helper,) = record_of(state, ended_s=11.0).helpers
    assert (helper.name, helper.host, helper.outcome) == ("server", "node1", Finished())
    assert (helper.environ, helper.announced) == ({"A": "b"}, {"X": "1"})


def test_throttling_lost_cpus_and_drift_are_warned_of() -> None:
    throttled = Telemetry(samples=(Sample(unix_s=1.0, throttle=("hw thermal",)),), affinity_cpus=1)
    state = measured()
    ranks = tuple(replace(rank, task=replace(rank.task, cpus=(0, 1))) for rank in state.ranks)
    state = replace(state, ranks=ranks, settled=False)
    state = folded(state, (0, RESULT), (1, RESULT), (0, Ended(telemetry=throttled)))
    found = record_of(replace(state, synchronous=False), ended_s=11.0).warnings
    assert [warning.kind for warning in found] == ["unsettled", "throttled", "lost-cpus"]
    assert found[0].text.startswith("did not settle")
    assert [warning.text for warning in found[1:]] == [
        "rank 0 on node1 was throttled: hw thermal",
        "rank 0 on node1 had 1 CPUs instead of the promised 2",
    ]


@pytest.mark.parametrize(
    ("masks", "kind", "crowded", "warned"),
    [
        (((0,), (1,)), "exchange", False, 0),
        (((0,), (0,)), "exchange", True, 1),  # taskset -p after the start
        (((0,), (0,)), "each", False, 1),
        (((0,), (5,)), "exchange", False, 1),
        (((5,), (5,)), "exchange", True, 2),
        (((0, 1), (0, 1)), "exchange", False, 0),  # nobody could pin them, or a thread of the framework's is free
    ],
)
def test_ranks_that_somebody_moves_onto_one_core_claim_nothing(
    masks: tuple[tuple[int, ...], ...], kind: Kind, crowded: bool, warned: int
) -> None:
    state = folded(measured(), (0, RESULT), (1, RESULT))
    hardware = replace(state.point.hardware, device="cpu")
    point = replace(state.point, kind=kind, hardware=hardware)
    ranks = tuple(
        replace(rank, task=replace(rank.task, cpus=(number,), hosts=("node1", "node1"), point=point))
        for number, rank in enumerate(state.ranks)
    )
    state = replace(state, ranks=ranks, point=point, synchronous=False)
    for rank, mask in enumerate(masks):
        told = Telemetry(affinity_cpus=len(mask), masks=(mask, (rank,)))
        state = folded(state, (rank, Ended(telemetry=told)))
    found = record_of(state, ended_s=11.0)
    assert (found.oversubscribed, bool(found.crowding)) == (crowded, crowded)
    assert [warning.kind for warning in found.warnings] == ["lost-cpus"] * warned


def test_a_flooded_log_is_warned_of() -> None:
    state = folded(measured(), (0, RESULT), (1, RESULT))
    state = folded(state, (0, Ended(log_dropped_bytes=345 * 10**6)))
    (found,) = record_of(replace(state, synchronous=False), ended_s=11.0).warnings
    assert found.text == "worker of rank 0 on node1 flooded its log: 345 MB of it were dropped"


def test_who_used_a_hosts_cores_meanwhile_is_warned_of_once() -> None:
    burner, idle = (Foreign(name=name, run_s=used, over_s=2.0) for name, used in (("burner", 1.9), ("idle", 0.3)))
    made = measured()
    aside = tuple(replace(rank, windows=(), disturbed=rank.windows) for rank in made.ranks)
    state = folded(replace(made, ranks=aside), (0, window()), (1, window()), (0, RESULT), (1, RESULT))
    for rank in (0, 1):
        ended = Ended(telemetry=Telemetry(foreign=(burner, idle)))
        state = folded(state, (rank, ended))
    ranks = [replace(rank, task=replace(rank.task, hosts=("node1", "node1"))) for rank in state.ranks]
    (found,) = record_of(replace(state, ranks=tuple(ranks)), ended_s=11.0).warnings
    assert found.kind == "foreign-load"
    assert found.text == "foreign load: burner used 95 % of a core; 2 windows repeated"


def test_a_throttled_helper_that_computes_is_warned_of_by_its_rank() -> None:
    throttled = Telemetry(samples=(Sample(unix_s=1.0, throttle=("sw thermal",), device_index=1),))
    state = with_helper(measured(), "trainer-0")
    state = folded(state, (0, Ended(telemetry=throttled)), role="trainer-0")
    state = folded(state, (0, RESULT), (1, RESULT))
    (found,) = record_of(state, ended_s=11.0).warnings
    assert (found.kind, found.text) == ("throttled", "rank 0 on node1 was throttled: sw thermal")


def test_what_an_ended_rank_still_says_changes_nothing() -> None:
    state = folded(start(), (0, Ended(exit=KILLED)))
    assert folded(state, (0, READY)) == state


# Which failure of a point is its cause: the most certain one, in whatever order rank 0 hears of them.

ROLES = ("worker", "worker", "server")


Story = tuple[Event, ...]


def ended(seen: Exit) -> Story:
    return (Ended(exit=replace(seen, log_tail="tail")),)


def raised(cause: str = "error", *, follows: bool = False) -> Story:
    return Error(cause=cause, message=f"raised: {cause}", may_follow=follows), *ended(Exit(code=1))


KILL, ABORT, SEGFAULT = (ended(Exit(code=-number)) for number in (SIGKILL, SIGABRT, SIGSEGV))
CANCEL, INTERRUPTED, HANGS = (ended(ended_by_agent(cause)) for cause in ("cancelled", "interrupted", "hang"))
# What the children say, the cause, and the child at fault: rank 0, rank 1, a server of rank 0's.
STORIES: list[tuple[Sequence[Story], str, int]] = [
    ([raised(), KILL], "crash(SIGKILL)", 1),
    ([raised(follows=True), KILL], "crash(SIGKILL)", 1),
    ([raised("nccl"), KILL], "crash(SIGKILL)", 1),
    ([raised("oom"), KILL], "crash(SIGKILL)", 1),
    ([SEGFAULT, KILL], "crash(SIGKILL)", 1),
    ([raised(), ended(Exit(code=-SIGKILL, oom_kills=1))], "oom", 1),
    ([raised(), SEGFAULT], "crash(SIGSEGV)", 1),
    ([ABORT, SEGFAULT], "crash(SIGSEGV)", 1),
    ([raised("nan-loss"), ABORT], "nan-loss", 0),
    ([raised("nan-loss"), raised()], "nan-loss", 0),
    ([raised(), ABORT], "error", 0),
    ([raised(), raised(follows=True)], "error", 0),
    ([raised(follows=True), ABORT], "crash(SIGABRT)", 1),
    ([raised(follows=True), ended(Exit(code=3))], "exit(3)", 1),
    ([raised(follows=True), HANGS], "hang", 1),
    ([raised(follows=True), CANCEL], "error", 0),
    ([INTERRUPTED, raised(follows=True)], "error", 1),
    ([raised(), ABORT, KILL], "crash(SIGKILL)", 2),
    ([CANCEL, ABORT, KILL], "crash(SIGKILL)", 2),
    ([raised(follows=True), (), KILL], "crash(SIGKILL)", 2),
    ([(), ABORT], "crash(SIGABRT)", 1),
]


def orders(stories: Sequence[Story]) -> Iterator[list[tuple[int, Event]]]:
    """Every order in which rank 0 can hear of it: each child's own events stay in theirs."""
    turns = [child for child, story in enumerate(stories) for _ in story]
    for order in set(permutations(turns)):
        left = [iter(story) for story in stories]
        yield [(child, next(left[child])) for child in order]


@pytest.mark.parametrize(("stories", "cause", "child"), STORIES)
def test_the_order_of_arrival_does_not_matter(stories: Sequence[Story], cause: str, child: int) -> None:
    for said in orders(stories):
        state = with_helper(start()) if len(stories) > 2 else start()
        for number, event in said:
            state = folded(state, (number % 2, event), role=ROLES[number])
        found = cause_of(state)
        assert found is not None
        assert (found.cause, found.message.startswith("helper"), found.rank) == (cause, child == 2, child % 2)
        assert found.log_tail == "tail"


def test_the_first_of_equally_certain_failures_is_the_cause() -> None:
    for first, second in ((0, 1), (1, 0)):
        found = cause_of(folded(start(), (first, KILL[0]), (second, KILL[0])))
        assert found is not None and found.rank == first


# How a child ended, by everything that rank 0 knows of it.

FULL = "; pids.max of the cgroup is 64"
MEMORY: dict[str, Any] = {"oom_kills": 2, "oom_file": "memory.events"}
LATE = replace(ended_by_agent("hang", "did not leave its exchange"), is_late=True)
FATAL = {
    "XLA": "2026-11-28 12:43:52.570831: F xla/parse_flags.cc:234] Unknown flag: --a",
    "TensorFlow": "F0000 00:00:1764333832.1  1234 tensor.cc:12] Check failed: a == b",
    "C++": "terminate called after throwing an instance of 'E'\n  what():  [1] no socket",
}
# Of a worker without a result, by its agent.
SEEN: dict[str, Exit | None] = {
    "exits with 3": Exit(code=3),
    "exits beside a full cgroup": Exit(code=1, limit=FULL),
    "aborts": ABORTED,
    "aborts beside a full cgroup": replace(ABORTED, limit=FULL),
    "ends by a bus error": Exit(code=-SIGBUS),
    "ends by a signal without a name": Exit(code=-40),
    "is killed": KILLED,
    "is killed out of memory": replace(KILLED, **MEMORY),
    "aborts out of memory": replace(ABORTED, **MEMORY),
    "is cancelled": CANCELLED,
    "was dying when its agent sent TERM": replace(CANCELLED, code=-SIGKILL),
    "was out of memory when its agent sent TERM": replace(CANCELLED, code=-SIGKILL, **MEMORY),
    "is killed by its agent": replace(CANCELLED, code=-SIGKILL, **MEMORY, signals=frozenset({SIGTERM, SIGKILL})),
    "exits when it is cancelled": replace(CANCELLED, code=1),
    "cannot start": Exit(is_started=False, reason=Failed(cause="error", message="cannot start")),
    "exits with 0": Exit(),
    "exits with 0 when it is cancelled": replace(CANCELLED, code=0),
    "never ends": None,
}
SEEN |= {f"tells {name}'s last word": replace(ABORTED, log_tail=f"a\n{line}\nb\n") for name, line in FATAL.items()}


def of(role: str = "worker", **known: Any) -> Evidence:
    task = replace(TASK, rank=1, hosts=("node1", "node2"), role=role, log="log.1")
    return replace(Evidence(task=task, host="node2"), **known)


def endings() -> Iterator[tuple[str, Evidence]]:
    for name, seen in SEEN.items():
        tail = seen and (seen.log_tail or "tail" * bool(seen.code))
        yield f"a worker {name}", of(exit=seen and replace(seen, log_tail=tail))
    for name in ("exits beside a full cgroup", "is cancelled", "aborts", "exits with 0", "never ends"):
        yield f"a worker says why and {name}", of(error=GONE, exit=SEEN[name])
    done = {"exits": Exit(), "aborts": ABORTED, "hangs": LATE, "hangs, then fails": replace(LATE, code=1),
            "is cancelled": CANCELLED, "exits when it is cancelled": replace(CANCELLED, code=0)}  # fmt: skip
    for name, end in done.items():
        yield f"a worker {name} after its result", of(is_done=True, exit=end)
    yield "a silent agent, whatever the worker says", of(silence="no word for 120 s", error=GONE)
    for is_done in (False, True):
        after = "after" if is_done else "before"
        for name, end in {"is killed": replace(KILLED, log_tail="tail"), "exits with 0": Exit()}.items():
            yield f"a helper {name} {after} it announces itself", of("server", is_done=is_done, exit=end)
    yield "a helper says why while it runs", of("server", is_done=True, error=GONE)


def test_how_a_child_ends() -> None:
    """Its own outcome, and the failure of its point."""
    lines = []
    for name, evidence in endings():
        found = figures(msgspec.to_builtins(how_it_ended(evidence)))
        lines.append(f"{name}: {msgspec.json.encode(found).decode()}")
    check_golden("endings.txt", "\n".join([*lines, ""]))


# ---------------------------------------------------------------- forecast


BEGUN = starting(point(2))


@pytest.mark.parametrize(
    ("points", "fields", "expected"),
    [
        # at first the plan's estimate holds, if there is one
        ((0, 10, 0, 0.0), {"planned_s": 3.0}, Ahead(0.0, 30.0)),
        ((0, 10, 0, 0.0), {"planned_s": 60.0}, Ahead(0.0, 600.0)),
        ((0, 10, 0, 0.0), {"planned_s": 0.0}, Ahead(0.0, None)),
        ((0.5, 2, 0.5, 10.0), {"planned_s": 0.0}, Ahead(0.25, 30.0)),
        # measured times outweigh it: it weighs 10 s or one point
        ((5, 1000, 5, 20.0), {"planned_s": 2.0}, Ahead(0.005, 995 * (20 + 10) / (5 + 5))),
        ((500, 1000, 500, 2000.0), {"planned_s": 2.0}, Ahead(0.5, 500 * (2000 + 10) / (500 + 5))),
        ((1, 2, 1, 90.0), {"planned_s": 60.0}, Ahead(0.5, 75.0)),
        # points of earlier runs count and took no time
        ((5, 10, 0, 0.0), {"planned_s": 3.0}, Ahead(0.5, 15.0)),
        # the soak is work too
        ((5, 10, 5, 15.0), {"planned_s": 3.0, "soak_s": 30.0}, Ahead(0.25, 45.0)),
        ((5, 10, 5, 15.0), {"planned_s": 3.0, "soak_s": 30.0, "soaked_s": 15.0}, Ahead(0.5, 30.0)),
        ((5, 10, 5, 15.0), {"planned_s": 3.0, "soak_s": 30.0, "soaked_s": 45.0}, Ahead(0.8, 15.0)),
        ((10, 10, 10, 15.0), {"planned_s": 3.0}, Ahead(1.0, 0.0)),
    ],
)
def test_how_far_a_sweep_is_and_how_long_it_takes(
    points: tuple[float, int, float, float], fields: dict[str, Any], expected: Ahead
) -> None:
    assert ahead(*points, **fields) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (BEGUN, 0.0),
        (ready(BEGUN), 0.0),
        (warming(BEGUN), 1 / 12),
        (measuring(BEGUN, 0), 2 / 12),
        (measuring(BEGUN, 4), 6 / 12),
        (replace(measuring(BEGUN, 4), phase="waiting"), 6 / 12),
        (measuring(BEGUN, 10), 1.0),
        (replace(measuring(BEGUN, 4), phase="soaking"), 1.0),
        (commanded(measuring(BEGUN, 10), Finish()), 1.0),
        (failing(BEGUN, CRASH), 1.0),
    ],
)
def test_the_part_of_a_point_that_is_measured(state: PointState, expected: float) -> None:
    assert part(state) == pytest.approx(expected)
