"""Which failure of a point is its cause: the most certain one, in whatever order rank 0 hears of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from signal import SIGABRT, SIGKILL, SIGSEGV

import pytest
from msgspec.structs import replace

from scaling.records.events import Ended, Error, Event, Exit
from scaling.records.messages import Report
from scaling.sweep.outcome import cause_of
from scaling.sweep.state import HelperState, PointState, RankState, fold
from tests.support.points import POINT, TASK
from tests.support.supervised import ended_by_agent

ROLES = ("worker", "worker", "server")


def ended(seen: Exit) -> Ended:
    return Ended(exit=replace(seen, log_tail="tail"))


def raised(cause: str = "error", *, follows: bool = False) -> tuple[Event, ...]:
    return Error(cause=cause, message=f"raised: {cause}", may_follow=follows), ended(Exit(code=1))


KILLED, ABORTED, SEGFAULT = (ended(Exit(code=-number)) for number in (SIGKILL, SIGABRT, SIGSEGV))
OUT_OF_MEMORY = ended(Exit(code=-SIGKILL, oom_kills=1))
CANCELLED, INTERRUPTED, HANGS = (ended(ended_by_agent(cause)) for cause in ("cancelled", "interrupted", "hang"))
Story = tuple[Event, ...]
# What the children say, the cause, and the child at fault: rank 0, rank 1, a server of rank 0's.
STORIES: list[tuple[Sequence[Story], str, int]] = [
    ([raised(), (KILLED,)], "crash(SIGKILL)", 1),
    ([raised(follows=True), (KILLED,)], "crash(SIGKILL)", 1),
    ([raised("nccl"), (KILLED,)], "crash(SIGKILL)", 1),
    ([raised("oom"), (KILLED,)], "crash(SIGKILL)", 1),
    ([(SEGFAULT,), (KILLED,)], "crash(SIGKILL)", 1),
    ([raised(), (OUT_OF_MEMORY,)], "oom", 1),
    ([raised(), (SEGFAULT,)], "crash(SIGSEGV)", 1),
    ([(ABORTED,), (SEGFAULT,)], "crash(SIGSEGV)", 1),
    ([raised("nan-loss"), (ABORTED,)], "nan-loss", 0),
    ([raised("nan-loss"), raised()], "nan-loss", 0),
    ([raised(), (ABORTED,)], "error", 0),
    ([raised(), raised(follows=True)], "error", 0),
    ([raised(follows=True), (ABORTED,)], "crash(SIGABRT)", 1),
    ([raised(follows=True), (ended(Exit(code=3)),)], "exit(3)", 1),
    ([raised(follows=True), (HANGS,)], "hang", 1),
    ([raised(follows=True), (CANCELLED,)], "error", 0),
    ([(INTERRUPTED,), raised(follows=True)], "error", 1),
    ([raised(), (ABORTED,), (KILLED,)], "crash(SIGKILL)", 2),
    ([(CANCELLED,), (ABORTED,), (KILLED,)], "crash(SIGKILL)", 2),
]


def start(children: int) -> PointState:
    tasks = [
        replace(TASK, rank=min(rank, 1), role=role, hosts=("node1", "node2")) for rank, role in enumerate(ROLES)
    ]
    return PointState(
        point=replace(POINT, world_size=2), ranks=tuple(RankState(task=task) for task in tasks[:2]), expected=1,
        helpers=tuple(HelperState(task=replace(task, rank=0)) for task in tasks[2:children]),
        started_s=10.0, started_unix_s=1e9,
    )  # fmt: skip


def orders(stories: Sequence[Story]) -> Iterator[list[tuple[int, Event]]]:
    """Every order in which rank 0 can hear of it: each child's own events stay in theirs."""
    turns = [child for child, story in enumerate(stories) for _ in story]
    for order in set(permutations(turns)):
        left = [iter(story) for story in stories]
        yield [(child, next(left[child])) for child in order]


@pytest.mark.parametrize(("stories", "cause", "child"), STORIES)
def test_the_order_of_arrival_does_not_matter(stories: Sequence[Story], cause: str, child: int) -> None:
    for said in orders(stories):
        state = start(len(stories))
        for number, event in said:
            state = fold(state, Report(attempt=1, rank=number % 2, role=ROLES[number], event=event))
        found = cause_of(state)
        assert found is not None
        assert (found.cause, found.message.startswith("helper"), found.rank) == (cause, child == 2, child % 2)
        assert found.log_tail == "tail"


def test_the_first_of_equally_certain_failures_is_the_cause() -> None:
    for first, second in ((0, 1), (1, 0)):
        state = start(2)
        for rank in (first, second):
            state = fold(state, Report(attempt=1, rank=rank, role="worker", event=KILLED))
        assert (found := cause_of(state)) is not None
        assert found.rank == first
