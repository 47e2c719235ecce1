"""When a core counts as disturbed, by scripted canaries; and that a real one asks the core that it should."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Collection
from itertools import count

import pytest

from scaling.hosts import proc
from scaling.quiet import agent
from scaling.quiet.canary import LEAST_SEEN, NEWEST, SLOWER, YOUNG, Canaries, Canary

STEADY_S = 0.006
# The hardware threads of four cores.
CORES = ((4, 12), (5, 13), (6, 14), (7, 15))


def steady(canaries: Canaries, count: int = LEAST_SEEN, rank: int = 0, company: str = "") -> None:
    for _ in range(count):
        assert not canaries.disturbed([(rank, company, Canary(STEADY_S))])


def test_a_canary_that_takes_longer_than_mostly_is_off() -> None:
    canaries = Canaries()
    steady(canaries)
    assert canaries.disturbed([(0, "", Canary(1.01 * SLOWER * STEADY_S))])
    assert not canaries.disturbed([(0, "", Canary(0.99 * SLOWER * STEADY_S))])


def test_the_first_ones_are_judged_by_nothing() -> None:
    canaries = Canaries()
    assert not any(canaries.disturbed([(0, "", Canary(STEADY_S * factor))]) for factor in (9, 1, 1, 1))
    assert canaries.disturbed([(0, "", Canary(9 * STEADY_S))])


def test_first_canaries_are_disturbed_if_another_program_used_the_core() -> None:
    """Else a burner that was there first would be what the core mostly does."""
    shared = Canary(2 * STEADY_S, STEADY_S)
    canaries = Canaries()
    assert all(canaries.disturbed([(0, "", shared)]) for _ in range(YOUNG))
    assert not canaries.disturbed([(0, "", shared)])  # for good: no patience helps


def test_a_single_lucky_one_is_not_the_measure() -> None:
    canaries = Canaries()
    assert not canaries.disturbed([(0, "", Canary(STEADY_S / 2))])
    steady(canaries, 20)


def test_a_core_is_judged_by_canaries_that_came_with_anothers_disturbance() -> None:
    canaries = Canaries()
    steady(canaries, 3 * LEAST_SEEN, rank=0)
    for _ in range(LEAST_SEEN):
        assert canaries.disturbed([(0, "", Canary(2 * STEADY_S)), (1, "", Canary(STEADY_S))])
    assert canaries.disturbed([(1, "", Canary(2 * STEADY_S))])


def test_one_disturbed_core_of_several_is_enough() -> None:
    canaries = Canaries()
    steady(canaries, rank=0)
    steady(canaries, rank=1)
    assert canaries.disturbed([(0, "", Canary(2 * STEADY_S)), (1, "", Canary(STEADY_S))])
    assert canaries.disturbed([(0, "", Canary(STEADY_S)), (1, "", Canary(2 * STEADY_S))])


@pytest.mark.parametrize("other", [(1, "together"), (0, "alone")])
def test_each_seat_and_company_has_its_own_measure(other: tuple[int, str]) -> None:
    canaries = Canaries()
    steady(canaries, rank=0, company="together")
    rank, company = other
    assert not canaries.disturbed([(rank, company, Canary(9 * STEADY_S))])
    assert canaries.disturbed([(0, "together", Canary(9 * STEADY_S))])


def test_a_burner_that_comes_and_goes_does_not_move_what_it_mostly_takes() -> None:
    """10 s of every 40: three canaries of four are steady."""
    canaries = Canaries()
    found = [canaries.disturbed([(0, "", Canary(STEADY_S * (2 if turn % 4 == 3 else 1)))]) for turn in range(200)]
    assert found[NEWEST:] == [turn % 4 == 3 for turn in range(NEWEST, 200)]


def test_a_run_that_began_beside_a_burner_finds_it_when_it_is_back() -> None:
    """Nobody queued, as beside a load on another hyperthread, and soon most of its canaries were slow."""
    noise, canaries = random.Random(5), Canaries()
    slow = [Canary(STEADY_S * noise.uniform(1.3, 2)) for _ in range(16)]
    for one in (*slow[:6], *8 * [Canary(STEADY_S)]):
        canaries.disturbed([(0, "", one)])
    assert all(canaries.disturbed([(0, "", one)]) for one in slow[6:])


def test_waiting_for_a_burner_does_not_make_it_usual() -> None:
    """Of the first tries half are beside it, and each is tried thrice until it has gone."""
    canaries = Canaries()
    slow, quick = Canary(2 * STEADY_S), Canary(STEADY_S)
    steady(canaries)
    for _ in range(NEWEST):
        assert not canaries.disturbed([(0, "", quick)])
        assert all(canaries.disturbed([(0, "", slow)], again=again) for again in (False, True, True))
        assert not canaries.disturbed([(0, "", quick)], again=True)


def test_a_core_of_varying_speed_is_not_always_disturbed() -> None:
    """As some virtual machines': 14 % from one look to the next. What stands out of it is still found."""
    noise = random.Random(3)
    canaries = Canaries()
    wandering = [STEADY_S * noise.lognormvariate(0, 0.14) for _ in range(400)]
    found = [canaries.disturbed([(0, "", Canary(canary_s))]) for canary_s in wandering]
    assert sum(found) < 0.05 * len(found)
    assert canaries.disturbed([(0, "", Canary(2 * STEADY_S))])


def test_a_machine_that_is_slower_for_good_is_the_new_measure() -> None:
    canaries = Canaries()
    steady(canaries, NEWEST)
    found = [canaries.disturbed([(0, "", Canary(2 * STEADY_S))]) for _ in range(NEWEST)]
    assert found[0] and not found[-1]


def test_no_canary_is_no_disturbance() -> None:
    assert not Canaries().disturbed([])


def test_it_is_timed_on_the_first_cpu_and_leaves_the_others_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: asked.append(sorted(cpus)))
    assert agent.measure((5, 3)) > 0
    assert agent.measure(()) > 0
    assert asked == [[5], [0, 3, 5], [0, 3, 5], [0, 3, 5]]


def test_a_cpu_that_is_forbidden_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(_pid: int, _cpus: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", forbid)
    assert agent.measure((99,)) > 0


@pytest.mark.parametrize(
    ("waited_s", "shared"), [(0.0, False), (0.0005, False), (0.003, True), (0.02, True)],
    ids=["not", "a tick", "half of it", "on its way there too"],
)  # fmt: skip
def test_a_core_that_another_program_used(waited_s: float, shared: bool) -> None:
    assert Canary(STEADY_S, waited_s).is_shared is shared


def test_what_this_thread_has_queued_never_falls() -> None:
    assert 0 <= agent.queued_s() <= agent.queued_s()


# ---------------------------------------------------------------- a rank with several cores


class Cores:
    """Cores on which a canary takes what is written here; which CPU each thread is pinned to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: dict[int, Canary] = {}
        self.forbidden: set[int] = set()
        self.asked: list[int] = []
        self.main = threading.get_ident()
        self.by_main: list[Collection[int]] = []
        self._own = threading.local()
        self._at_work = threading.Barrier(len(CORES), timeout=10.0)
        monkeypatch.setattr(proc, "physical_cores", self._cores)
        monkeypatch.setattr(os, "sched_setaffinity", self._pin)
        monkeypatch.setattr(agent, "measure", self._measure)
        monkeypatch.setattr(agent, "queued_s", self._queued_s)

    def _cores(self, cpus: Collection[int]) -> tuple[tuple[int, ...], ...]:
        mine = (tuple(cpu for cpu in core if cpu in cpus) for core in CORES)
        return tuple(core for core in mine if core)

    def _pin(self, pid: int, cpus: Collection[int]) -> None:
        assert pid == 0, "only the thread itself"
        if not self.forbidden.isdisjoint(cpus):
            raise OSError(22, "Invalid argument")
        (self._own.cpu,) = cpus

    def _measure(self, cpus: Collection[int]) -> float:
        if threading.get_ident() == self.main:
            self.by_main.append(cpus)
            return STEADY_S
        (cpu,) = cpus
        assert cpu == self._own.cpu, "pinned before anything is timed"
        self.asked.append(cpu)
        if not self.forbidden:
            self._at_work.wait()  # all at the same time, or this breaks
        return self.taken.get(cpu, Canary(STEADY_S)).seconds

    def _queued_s(self) -> float:
        """What this thread's canary waited is there once it was asked."""
        cpu: int = getattr(self._own, "cpu", -1)
        found = self.taken.get(cpu, Canary(STEADY_S))
        return 7.0 + (found.queued_s if cpu in self.asked else 0.0)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Cores:
    return Cores(monkeypatch)


CPUS = tuple(cpu for core in CORES for cpu in core)


def test_of_a_rank_with_several_cores_all_are_asked_at_once_and_the_slowest_counts(cores: Cores) -> None:
    slow = Canary(2 * STEADY_S, STEADY_S)
    cores.taken = {5: Canary(1.5 * STEADY_S), 7: slow}
    assert agent.tried(CPUS) == pytest.approx(slow)
    assert sorted(cores.asked) == [4, 5, 6, 7]
    assert cores.by_main == []


def test_no_thread_is_left(cores: Cores) -> None:
    before = threading.active_count()
    agent.tried(CPUS)
    assert threading.active_count() == before


@pytest.mark.parametrize("cpus", [(4,), (4, 12), ()], ids=["a thread", "a core", "any"])
def test_a_rank_with_one_core_has_no_extra_thread(
    cores: Cores, cpus: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread"))
    assert agent.tried(cpus) == Canary(STEADY_S)
    assert cores.by_main == [cpus]


def test_cores_that_are_forbidden_are_left_out(cores: Cores) -> None:
    """Whoever cannot be pinned would queue behind one of the others."""
    cores.forbidden = {5, 7}
    assert agent.tried(CPUS) == Canary(STEADY_S)
    assert sorted(cores.asked) == [4, 6]


def test_where_all_are_forbidden_any_will_do(cores: Cores) -> None:
    cores.forbidden = {4, 5, 6, 7}
    assert agent.tried(CPUS) == Canary(STEADY_S)
    assert (cores.asked, cores.by_main) == ([], [CPUS])


def test_without_so_many_threads_any_will_do(cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    started, start = count(), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if next(started):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(agent, "TOGETHER_S", 0.01)
    assert agent.tried(CPUS) == Canary(STEADY_S)
    assert cores.by_main == [CPUS]


def test_real_threads_are_pinned_to_the_cores_and_this_one_is_not() -> None:
    before = os.sched_getaffinity(0)
    found = agent._side_by_side(sorted(before))
    assert len(found) == len(before)
    assert all(one.seconds > 0 and one.queued_s >= 0 for one in found)
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("counts", "is_shared"), [((5, 5), True), ((5, 6), False)])
def test_a_canary_that_a_quota_held_up_tells_of_no_others(
    counts: tuple[int, int], is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    throttled, queued_s, ran_s = iter(counts), iter((1.0, 1.0 + 9 * STEADY_S)), iter((2.0, 2.0 + STEADY_S))
    monkeypatch.setattr(proc, "throttling", lambda: {"": proc.Throttling(9, next(throttled), 1.0)})
    monkeypatch.setattr(agent, "queued_s", lambda: next(queued_s))
    monkeypatch.setattr(agent, "measure", lambda cpus: 10 * STEADY_S)
    monkeypatch.setattr(time, "thread_time", lambda: next(ran_s))
    found = agent.tried([0])
    assert found.is_shared is is_shared
    assert found.seconds == pytest.approx(10 * STEADY_S if is_shared else STEADY_S)
