"""Real frameworks in forks: ranks that are forked from a process that has imported the framework train as fresh
ones do, to the last bit, and ranks that were stopped for long go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent.child import Child, Starter
from scaling.agent.environment import child_environ
from scaling.hosts.proc import adopt_orphans
from scaling.plan.tasks import helper_task, worker_tasks
from scaling.records.events import Announce, Exit, Ready, Result, Window
from scaling.records.task import Finish, Run, Task
from tests.support import ranks
from tests.support.forked import end, ended, heard, is_forked
from tests.support.matrix import cases
from tests.support.waiting import eventually

STEPS = 3
# TensorFlow's ranks take each other for dead after 10 s, unless they are told to have patience.
STOPPED_S, LATER_S = 12.0, 1.5
SYNCHRONOUS = [
    "torch:gloo", "torch:horovod", "torch:ps-sync", "tensorflow:ring", "tensorflow:horovod", "mxnet:dist_sync",
    "jax:psum", "mxnet:horovod", "mxnet:local",
]  # fmt: skip
FEW = ["torch:gloo", "torch:ps-sync", "tensorflow:ring", "mxnet:horovod"]


# Long enough for a worker to need its helper.
LATE_S = 1.5
STARTER = Starter(os.environ)


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    yield
    STARTER.close()


def ready(task: Task) -> Starter:
    plain = frameworks.load(task.point.strategy).baseline
    sample = replace(task, point=replace(task.point, strategy=plain, kind="solo", options={}))
    STARTER.preload(sample, [one for one in frameworks.NAMES if not frameworks.load(one).missing(one)])
    eventually(STARTER.settled, within_s=ranks.LIMIT_S)
    return STARTER


@contextmanager
def running(name: str, *, fresh: bool) -> Iterator[list[Child]]:
    """The workers of two ranks, ready to be told what to do. Helpers that they wait for themselves come last, as
    may happen on a busy machine."""
    adopt_orphans()
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        tasks = [replace(task, fresh=fresh) for task in ranks.tasks(name, "exchange", 2)]
        for port in ranks.ports_of(tasks[0]):
            stack.enter_context(ranks.bound(port))
        starter = ready(tasks[0])
        tasks = [replace(task, log=str(Path(folder, f"{task.rank}.log"))) for task in tasks]
        strategy = frameworks.load(name)
        helpers = [(helper_task(tasks, helper), helper) for helper in strategy.helpers(tasks[0])]
        announced: dict[str, str] = {}
        for child in [start(stack, starter, task) for task, each in helpers if each.awaited]:
            event = heard(child, Announce)
            assert isinstance(event, Announce)
            announced |= event.values
        of_workers = [replace(task, announced=announced) for task in worker_tasks(tasks, strategy.traits(name))]
        children = [start(stack, starter, task) for task in of_workers]
        late = [task for task, each in helpers if not each.awaited]
        if late:
            time.sleep(LATE_S)
        for child in [start(stack, starter, task) for task in late]:
            heard(child, Announce)
        for child in children:
            heard(child, Ready)
        yield children


def start(stack: ExitStack, starter: Starter, task: Task) -> Child:
    asked = frameworks.load(task.point.strategy).environ(task, task.announced)
    child = Child(task, child_environ(os.environ, task, asked), start=starter.start)
    stack.callback(over, child)
    assert is_forked(child.pid) != task.fresh
    return child


def over(child: Child) -> None:
    if Path(f"/proc/{child.pid}").exists():
        end(child)


def window(children: Sequence[Child]) -> list[Window]:
    for child in children:
        child.tell(Run(windows=1, steps=STEPS, measured=True))
    return [event for child in children if isinstance(event := heard(child, Window), Window)]


def digests(children: Sequence[Child]) -> list[str | None]:
    for child in children:
        child.tell(Finish())
    found = [event.digest for child in children if isinstance(event := heard(child, Result), Result)]
    assert [ended(child) for child in children] == [Exit()] * len(children)
    return found


@cache
def trained(name: str, *, fresh: bool) -> tuple[list[float | None], list[str | None]]:
    if reason := frameworks.load(name).missing(name):
        pytest.skip(reason)
    with running(name, fresh=fresh) as children:
        losses = [one.loss for one in window(children)]
        return losses, digests(children)


@pytest.mark.parametrize("name", cases(SYNCHRONOUS, FEW))
def test_forked_ranks_train_as_fresh_ones_do(name: str) -> None:
    losses, found = trained(name, fresh=False)
    assert len(set(found)) == 1
    assert None not in found
    assert (losses, found) == trained(name, fresh=True)


@pytest.mark.parametrize(
    "name", cases(["torch:ps-async", "tensorflow:ps", "mxnet:dist_async"], ["mxnet:dist_async"])
)
def test_asynchronous_ranks_can_be_forked_too(name: str) -> None:
    losses, _ = trained(name, fresh=False)
    assert all(loss is not None and loss > 0 for loss in losses)


@pytest.mark.parametrize(
    "name", cases(["torch:gloo", "tensorflow:ring", "mxnet:dist_sync", "jax:psum"], ["tensorflow:ring"])
)
def test_ranks_that_are_stopped_for_long_go_on(name: str) -> None:
    """As they are while others take their turns; their agents let them go on one a little after the other. It
    really takes so long: what they would lose are heartbeats."""
    if reason := frameworks.load(name).missing(name):
        pytest.skip(reason)
    with running(name, fresh=False) as children:
        window(children)
        for child in children:
            child.pause()
        time.sleep(STOPPED_S)
        for child in children:
            child.resume()
            time.sleep(LATER_S)
        window(children)
        found = digests(children)
        assert len(set(found)) == 1 and None not in found


FAULTS = [*product(("torch:gloo", "tensorflow:ring", "mxnet:horovod"), (False, True))]


@pytest.mark.parametrize(
    ("name", "fresh"), cases(FAULTS, [one for one in FAULTS if one[0] == "mxnet:horovod" or not one[1]])
)
def test_a_fault_ends_a_rank_at_once_with_its_stack(name: str, fresh: bool) -> None:
    """Whatever handler its framework has: MXNet's would run what C++ does at an orderly end, and might hang."""
    if reason := frameworks.load(name).missing(name):
        pytest.skip(reason)
    with running(name, fresh=fresh) as (first, _):
        eventually(lambda: psutil.Process(first.pid).status() == psutil.STATUS_SLEEPING)  # it waits for a command
        os.kill(first.pid, signal.SIGSEGV)
        assert ended(first).code == -signal.SIGSEGV
        assert "Fatal Python error: Segmentation fault" in (log := Path(first.task.log).read_text())
        assert " in receive\n" in log


# libgomp takes its places when a fork server is imported; a limit of one thread makes backward passes hang.
OPENMP = {
    "OMP_PROC_BIND": "true",
    "OMP_PLACES": "threads",
    "OMP_THREAD_LIMIT": "1",
    "GOMP_CPU_AFFINITY": "0-1023",
    "KMP_AFFINITY": "compact",
}
# Of a thread that computes; others that MXNet starts in a fork, before that is pinned, only wait.
LEAST_NS = 5_000_000


@pytest.mark.parametrize("name", ["torch:plain", "mxnet:plain"])
def test_threads_stay_on_the_cpus_of_their_rank_despite_openmp_variables(name: str, tmp_path: Path) -> None:
    if reason := frameworks.load(name).missing(name):
        pytest.skip(reason)
    adopt_orphans()
    base = {**os.environ, **OPENMP}
    cpu = min(os.sched_getaffinity(0))
    task = replace(ranks.one_task(name), cpus=(cpu,), threads=2, log=str(tmp_path / "log"))
    starter = Starter(base)
    with ExitStack() as stack:
        stack.callback(starter.close)
        starter.preload(task)
        eventually(starter.settled, within_s=ranks.LIMIT_S)
        asked = frameworks.load(name).environ(task, {})
        child = Child(task, child_environ(base, task, asked), start=starter.start)
        stack.callback(over, child)
        assert is_forked(child.pid)
        heard(child, Ready)
        window([child])
        threads = {
            int(path.parent.name): path.read_text() for path in Path(f"/proc/{child.pid}/task").glob("*/schedstat")
        }
        computing = [thread for thread, told in threads.items() if int(told.split()[0]) > LEAST_NS]
        assert len(computing) > 1
        assert {frozenset(os.sched_getaffinity(thread)) for thread in computing} == {frozenset({cpu})}
