"""A mark on every test for the folder it is in, and a watch over those of tests/unit.

Where pytest-xdist runs tests in several processes at once: which of them one process runs, and which have no other
beside them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from tests.support import guard, quiet

HERE = Path(__file__).parent
# Runs of tests have no page unless a test asks for it: it takes seconds. Children and ranks inherit this.
os.environ.setdefault("SCALING_PAGE", "0")
FOLDERS = ("unit", "process", "frameworks", "system")
# The longest first, so that at the end no process waits long for the other's last file.
LONGEST_FIRST = ("system", "frameworks", "process", "", "unit")
# Tests of a file share runs and fixtures, those of these folders even across files: an image that takes minutes.
TOGETHER = ("system/containers",)
# What a test of these sees must have been planted by itself: no other is beside it.
ALONE = ("system/mpi/test_planted.py",)


def folder(path: Path) -> str:
    """The part of the tests that a file belongs to; "" beside them."""
    return next((name for name in FOLDERS if path.is_relative_to(HERE / name)), "")


def watch(node: pytest.Item | pytest.Collector) -> AbstractContextManager[None]:
    """Over a test, or a file while it is imported, that promises to stay in this process."""
    return guard.watched(node.nodeid) if folder(node.path) == "unit" else nullcontext()


def group(path: Path) -> str:
    """Tests of one group are run one after the other by one process."""
    name = path.relative_to(HERE).as_posix()
    return next((together for together in TOGETHER if name.startswith(f"{together}/")), name)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if mark := folder(item.path):
            item.add_marker(mark)
        if config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group(group(item.path)))
    if side_by_side(config):
        items.sort(key=lambda item: LONGEST_FIRST.index(folder(item.path)))


def side_by_side(config: pytest.Config) -> str:
    """The name of this run where it has several processes that run tests, "" where this one runs all."""
    return str(getattr(config, "workerinput", {}).get("testrunuid", ""))


def quietly(item: pytest.Item) -> AbstractContextManager[None]:
    """Alone, or beside others that need not be."""
    if not (run := side_by_side(item.config)):
        return nullcontext()
    shared = Path(tempfile.gettempdir(), f"scaling-tests-{run}")
    shared.mkdir(exist_ok=True)
    return quiet.held(shared, alone=item.path.relative_to(HERE).as_posix() in ALONE)


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
