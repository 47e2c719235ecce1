"""Steps that are timed one by one: in which kinds of point, and of which frameworks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent.child import Child
from scaling.agent.environment import child_environ
from scaling.records.events import Exit, Ready, Result, Window
from scaling.records.point import Kind
from scaling.records.task import Finish, Run
from tests.support import kept_forks, ranks
from tests.support.forked import end, ended, heard

RUN = Run(windows=1, steps=3, measured=True)
# Of a sum of three clock readings' differences.
ROUNDING_S = 1e-9


@contextmanager
def running(name: str, kind: Kind, folder: Path) -> Iterator[Child]:
    if reason := frameworks.load(name).missing(name):
        pytest.skip(reason)
    task = replace(ranks.one_task(name, kind), log=str(folder / "0.log"))
    child = Child(task, child_environ(os.environ, task, frameworks.load(name).environ(task, {})), kept_forks.fork)
    try:
        heard(child, Ready)
        yield child
    finally:
        if Path(f"/proc/{child.pid}").exists():
            end(child)


def windows(name: str, kind: Kind, folder: Path) -> list[Window]:
    with running(name, kind, folder) as child:
        found = []
        for _ in range(2):
            child.tell(RUN)
            event = heard(child, Window)
            assert isinstance(event, Window)
            found.append(event)
        child.tell(Finish())
        heard(child, Result)
        assert ended(child) == Exit()
    return found


@pytest.mark.parametrize("name", ["torch:plain", "tensorflow:plain", "jax:plain"])
def test_plain_loops_beside_each_other_have_a_time_of_each_step(name: str, tmp_path: Path) -> None:
    """The first begins with the window, each where the one before ends, and after the last one nothing is left
    but to see that the device is done."""
    for window in windows(name, "together", tmp_path):
        assert len(window.step_s) == window.steps == RUN.steps
        assert min(window.step_s) > 0
        assert sum(window.step_s) <= window.seconds + ROUNDING_S


@pytest.mark.parametrize(
    ("name", "kind"), [("torch:plain", "exchange"), ("tensorflow:plain", "exchange"), ("mxnet:plain", "together")]
)
def test_other_steps_are_timed_by_the_window(name: str, kind: Kind, tmp_path: Path) -> None:
    """MXNet's return before they are done."""
    assert [window.step_s for window in windows(name, kind, tmp_path)] == [(), ()]
