"""A mark on every test for the folder it is in, and a watch over those of tests/unit."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from tests.support import guard

HERE = Path(__file__).parent
# Runs of tests have no page unless a test asks for it: it takes seconds. Children and ranks inherit this.
os.environ.setdefault("SCALING_PAGE", "0")
FOLDERS = ("unit", "process", "frameworks", "system")


def folder(path: Path) -> str:
    """The part of the tests that a file belongs to; "" beside them."""
    return next((name for name in FOLDERS if path.is_relative_to(HERE / name)), "")


def watch(node: pytest.Item | pytest.Collector) -> AbstractContextManager[None]:
    """Over a test, or a file while it is imported, that promises to stay in this process."""
    return guard.watched(node.nodeid) if folder(node.path) == "unit" else nullcontext()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if mark := folder(item.path):
            item.add_marker(mark)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    with watch(collector):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with watch(item):
        return (yield)
