"""One fork server per framework for many tests: what they start shares its imports.

An import takes 2 to 6 s of CPU time, and the ranks of a point all do it. What is forked is what a sweep forks;
that such ranks train as fresh ones do, frameworks/test_forks.py shows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from msgspec.structs import replace

from scaling import frameworks
from scaling.agent.child import Fds, ForkServer, Started
from scaling.agent.environment import child_environ
from scaling.hosts.proc import adopt_orphans
from scaling.records.task import Task
from tests.support.waiting import eventually

# Also has a fork run a rank of tests/support/rank.py where it is asked for one.
FORKED_RANK = "tests.support.forked_rank"
IMPORT_LIMIT_S = 240.0
_servers: dict[tuple[str, int, str], ForkServer] = {}


def fork(task: Task, environ: Mapping[str, str], fds: Fds) -> Started:
    """Start what the task asks for as a fork, as an agent does. Raises OSError."""
    key = (frameworks.load(task.point.strategy).baseline, task.threads, task.malloc)
    if key not in _servers:
        adopt_orphans()  # a fork whose server has ended becomes this process's own child
        _servers[key] = _server(task)
    return _servers[key].fork(environ, fds)


def _server(task: Task) -> ForkServer:
    """One with the environment that an agent's has: the plain loop's."""
    plain = frameworks.load(task.point.strategy).baseline
    sample = replace(task, point=replace(task.point, strategy=plain, kind="solo", options={}))
    environ = child_environ(os.environ, sample, frameworks.load(plain).environ(sample, {}))
    modules = frameworks.named(plain).preload
    assert modules, f"nothing of {plain} is imported before a fork"
    server = ForkServer(sys.executable, (*modules, FORKED_RANK), environ)

    def is_ready() -> bool:
        server.look()
        assert server.ready is not False, f"the fork server of {plain} has ended"
        return bool(server.ready)

    eventually(is_ready, within_s=IMPORT_LIMIT_S)
    return server


def close() -> None:
    """End them all; the next fork starts its server anew."""
    for server in _servers.values():
        server.close()
    _servers.clear()
