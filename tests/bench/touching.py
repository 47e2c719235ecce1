"""A pytest plugin (`-p touching`): which functions of `scaling` does each test run?

It imports nothing of this repository: tests.bench.mutations uses it with the tests of another commit.
A function is scaling/FILE:LINE, its first line, decorators included. Seconds are CPU time, which a loaded machine
does not lengthen.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from cProfile import Profile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = f"{Path.cwd()}{os.sep}scaling{os.sep}"
FOLDER = Path(os.environ["SCALING_TOUCHED"])
LIMIT_S = float(os.environ.get("SCALING_TOUCHED_S", "inf"))
_seen: dict[int, CodeType] = {}
_outcomes: list[Any] = []
_file, _file_s = "", 0.0


def _note(frame: FrameType, event: str, argument: object) -> None:
    """For threading.setprofile: other threads than the first are few."""
    _seen.setdefault(id(frame.f_code), frame.f_code)


def _forget() -> None:
    """Empty all caches: each file of tests computes its own."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("tests", "scaling"):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear") and not isinstance(value, type):
                    value.cache_clear()


def _traced(nodeid: str) -> Generator[None, Any, Any]:
    _seen.clear()
    _outcomes.clear()
    began_s = time.process_time()
    profiler = Profile(builtins=False)
    threading.setprofile(_note)
    profiler.enable()
    try:
        return (yield)
    finally:
        profiler.disable()
        threading.setprofile(None)
        codes = (entry.code for entry in profiler.getstats())
        _seen.update((id(code), code) for code in codes if isinstance(code, CodeType))
        _write(nodeid, time.process_time() - began_s)


def _write(nodeid: str, seconds: float) -> None:
    global _file_s  # noqa: PLW0603
    _file_s += seconds
    codes = [code for code in _seen.values() if code.co_filename.startswith(ROOT)]
    functions = sorted({f"scaling/{code.co_filename[len(ROOT) :]}:{code.co_firstlineno}" for code in codes})
    line = {
        "test": nodeid,
        "failed": any(one.failed for one in _outcomes),
        "seconds": seconds,
        "functions": functions,
    }
    with (FOLDER / "tests.jsonl").open("a") as out:
        out.write(json.dumps(line) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _outcomes.append(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    if isinstance(collector, pytest.Module):
        _forget()
        return (yield from _traced(collector.nodeid))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    global _file, _file_s
    file = item.nodeid.partition("::")[0]
    if file != _file:
        _forget()
        _file, _file_s = file, 0.0
    if _file_s > LIMIT_S:
        item.add_marker(pytest.mark.skip(reason="its file takes too long to be chosen"))
    return (yield from _traced(item.nodeid))
