"""What agents are told to import before the first point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scaling import frameworks
from scaling.agent import strategies
from scaling.plan import config, plan
from scaling.records.messages import AGENT_DECODER, SWEEP_DECODER, Preload, Preloaded, ToAgent, ToSweep
from scaling.records.task import Task
from scaling.sweep.sweep import preload
from scaling.transport.base import Hub, Mailbox, send_news
from tests.support.inline import enrol, host
from tests.support.inline_child import Clock

CPU_STRATEGIES = ("torch:gloo", "torch:ps-sync", "tensorflow:ring", "tensorflow:ps", "mxnet:dist_sync")


class Agents:
    def __init__(self, size: int, silent: int | None = None, fresh: tuple[str, ...] = ()) -> None:
        self._fresh = fresh
        self.tasks: dict[int, tuple[Task, ...]] = {}
        self.clock = Clock()
        self._hub, self._silent = Hub(size), silent
        self.mailbox = Mailbox[ToAgent, ToSweep](
            self._hub.rank(0), SWEEP_DECODER, turn=self._turn, wait=lambda: self.clock.sleep(1.0), clock=self.clock
        )

    def _turn(self) -> None:
        for rank in range(self._hub.size):
            while (message := self._hub.rank(rank).receive("agent")) is not None:
                order = AGENT_DECODER.decode(message[1])
                assert isinstance(order, Preload)
                assert rank not in self.tasks
                self.tasks[rank], self.strategies = order.tasks, set(order.strategies)
                if rank != self._silent:
                    send_news(self._hub.rank(rank), Preloaded(fresh=self._fresh))


def told(size: int = 2, missing: dict[str, str] | None = None, **fields: Any) -> Agents:
    wanted = config.build({"device": "cpu", **fields}, source="test")
    made = plan.make(wanted, [enrol(host(cores=size), missing=missing or {})] * size)
    agents = Agents(size)
    preload(made, agents.mailbox, within_s=60.0)
    return agents


def names(agents: Agents, rank: int = 0) -> list[str]:
    return [frameworks.named(frameworks.load(task.point.strategy).baseline).name for task in agents.tasks[rank]]


def test_every_agent_imports_every_framework_once() -> None:
    agents = told(4, strategy=CPU_STRATEGIES)
    assert sorted(agents.tasks) == [0, 1, 2, 3]
    assert all(names(agents, rank) == ["torch", "tensorflow", "mxnet"] for rank in agents.tasks)
    assert agents.clock() == 0.0


@pytest.mark.parametrize("kinds", [["exchange"], list(config.KINDS)], ids=["exchange", "all kinds"])
@pytest.mark.parametrize("name", CPU_STRATEGIES)
def test_the_environment_to_import_in_can_be_told_without_ports(name: str, kinds: list[str]) -> None:
    """Or its children would all start fresh, and nobody would know why."""
    agents = told(strategy=[name], kinds=kinds)
    for task in (task for rank in (0, 1) for task in agents.tasks[rank]):
        assert "MASTER_PORT" not in strategies.environ(task)


def test_what_strategies_import_is_asked_for_of_those_that_run() -> None:
    agents = told(strategy=["torch:gloo", "torch:horovod", "torch:ps-sync"], missing={"torch:ps-sync": "planted"})
    assert agents.strategies == {"torch:gloo", "torch:horovod", "torch:plain"}


def test_threads_and_heap_are_those_of_the_points() -> None:
    agents = told(strategy=["torch:gloo"], cpus_per_rank=1, malloc="system", fresh_workers=True)
    (task,) = agents.tasks[1]
    assert (task.threads, task.malloc, task.fresh) == (1, "system", True)


def test_what_is_missing_or_cannot_be_forked_is_not_imported() -> None:
    asked: dict[str, Any] = {"strategy": ["torch:gloo", "mxnet:dist_sync"], "missing": {"torch:gloo": "no Gloo"}}
    assert names(told(**asked, kinds=["exchange"])) == ["mxnet"]
    assert names(told(**asked)) == ["torch", "mxnet"]  # the plain loop needs no Gloo
    assert told(strategy=["fake:a"]).tasks == {}


@pytest.mark.parametrize(("silent", "waited"), [(None, lambda s: s == 0), (1, lambda s: s >= 60)])
def test_an_agent_that_does_not_answer_is_waited_for_within_the_limit(
    silent: int | None, waited: Callable[[float], bool]
) -> None:
    wanted = config.build({"device": "cpu", "strategy": ["torch:gloo"]}, source="test")
    made = plan.make(wanted, [enrol(host(cores=2))] * 2)
    agents = Agents(2, silent)
    preload(made, agents.mailbox, within_s=60.0)
    assert waited(agents.clock())
    assert agents.clock() < 70


def test_a_framework_that_cannot_be_forked_is_noted_once() -> None:
    wanted = config.build({"device": "cpu", "strategy": ["torch:gloo"]}, source="test")
    made = plan.make(wanted, [enrol(host(cores=2))] * 2)
    (note,) = preload(made, Agents(2, fresh=("torch",)).mailbox, within_s=60.0)
    assert note.startswith("torch: its import initialises CUDA")
