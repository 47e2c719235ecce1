"""A mark on every test for the folder it is in, a watch over those of tests/unit, and an end to those that hang.

Where pytest-xdist runs tests in several processes at once: which of them one process runs, and which have no other
beside them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import guard, quiet, stuck

HERE = Path(__file__).parent
# Runs of tests have no page unless a test asks for it: it takes seconds. Children and ranks inherit this.
os.environ.setdefault("SCALING_PAGE", "0")
FOLDERS = ("unit", "process", "frameworks", "system")
# The longest first, so that at the end no process waits long for another's last file.
LONGEST_FIRST = ("system", "frameworks", "process", "", "unit")
# Tests of a file share runs and fixtures. Those of these folders change the machine, and run one after the other.
TOGETHER = ("system/containers/", "system/lab/", "system/slurm/")
# What a test of these sees must have been planted by itself: no other is beside it. They come first. Later they
# would wait for the longest test that has begun (certify in a lab, for minutes), and hold up all others.
ALONE = ("system/mpi/test_planted.py",)
MEETING = pytest.StashKey[str]()
MATRIX = "matrix"
LEFT_OUT = pytest.StashKey[int]()  # how many tests of the matrix


def folder(path: Path) -> str:
    """The part of the tests that a file belongs to; "" beside them."""
    return next((name for name in FOLDERS if path.is_relative_to(HERE / name)), "")


def watch(node: pytest.Item | pytest.Collector) -> AbstractContextManager[None]:
    """Over a test, or a file while it is imported, that promises to stay in this process."""
    return guard.watched(node.nodeid) if folder(node.path) == "unit" else nullcontext()


def group(nodeid: str) -> str:
    name = nodeid.partition("::")[0].removeprefix(f"{HERE.name}/")
    return "machine" if name.startswith(TOGETHER) else name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Not by marks: pytest-xdist 3.8 ignores its own with pytest 9.2 (pytest-dev/pytest-xdist#1386)."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # they come as they are sorted
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group
    return scheduler


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    if MEETING not in node.config.stash:
        folder = node.config.stash[MEETING] = tempfile.mkdtemp(prefix="scaling-quiet-")
        node.config.add_cleanup(partial(shutil.rmtree, folder))
    node.workerinput["meeting"] = node.config.stash[MEETING]


def pytest_itemcollected(item: pytest.Item) -> None:
    if mark := folder(item.path):
        item.add_marker(mark)


def meeting(config: pytest.Config) -> str | None:
    """The folder where processes that run tests side by side meet; None where this is the only one."""
    return getattr(config, "workerinput", {}).get("meeting")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if MATRIX not in config.option.markexpr:
        matrix = [item for item in items if item.get_closest_marker(MATRIX)]
        items[:] = [item for item in items if not item.get_closest_marker(MATRIX)]
        config.hook.pytest_deselected(items=matrix)
        config.stash[LEFT_OUT] = len(matrix)
    if meeting(config):
        items.sort(key=lambda item: (not is_alone(item), LONGEST_FIRST.index(folder(item.path))))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[MATRIX] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get(MATRIX, 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.line(f"{count} tests are left to the matrix: ./launch/test --matrix or pytest -m matrix")


def is_alone(item: pytest.Item) -> bool:
    return item.path.relative_to(HERE).as_posix() in ALONE


def quietly(item: pytest.Item) -> AbstractContextManager[None]:
    if not (place := meeting(item.config)):
        return nullcontext()
    return quiet.held(Path(place), alone=is_alone(item))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    with watch(collector):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before the clock of pytest-timeout runs
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with quietly(item), watch(item):
        return (yield)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(settings: Any) -> Generator[None, object, object]:
    done = yield
    if settings.method == "signal":
        stuck.free_after_alarm()
    return done
