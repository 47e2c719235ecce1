"""ps-lite's scheduler and servers as processes, and the optimiser that counts on a server."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.agent.child import Child
from scaling.agent.environment import child_environ
from scaling.frameworks.abilities import LOOK_S
from scaling.frameworks.mx import ps_lite
from scaling.frameworks.mx.strategies import DistKvstore
from scaling.plan import tasks
from scaling.records.events import Announce
from tests.frameworks.mx import needs_mxnet
from tests.support import ranks
from tests.support.waiting import eventually


@pytest.fixture
def held() -> Iterator[socket.socket]:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
        yield one


def test_a_reserved_port_is_no_server(held: socket.socket) -> None:
    """What is bound refuses until it listens: only then it is announced, once."""
    said: list[dict[str, str]] = []
    watch = threading.Thread(target=ps_lite._announce_when_up, args=(*held.getsockname(), said.append))
    watch.start()
    time.sleep(5 * LOOK_S)
    assert said == []
    held.listen()
    watch.join(10)
    assert said == [{}]


@needs_mxnet
@pytest.mark.parametrize("role", ["scheduler", "server-0"])
def test_a_helper_listens_at_its_address_and_ends_on_term(role: str, tmp_path: Path, held: socket.socket) -> None:
    """Announced once it can be reached, at its address alone, though the other roles are not there."""
    address, port = held.getsockname()
    (alone,) = ranks.tasks("mxnet:dist_sync", "exchange", 1)
    (server,) = alone.servers
    mine: dict[str, Any] = (
        {"ports": (port,)} if role == "scheduler" else {"servers": (replace(server, port=port),)}
    )
    of = [replace(alone, log=str(tmp_path / "0.log"), **mine)]
    (wanted,) = (each for each in DistKvstore().helpers(of[0]) if each.name == role)
    task = tasks.helper_task(of, wanted)
    child = Child(task, child_environ(os.environ, task, DistKvstore().environ(task, {})))
    try:
        said = eventually(lambda: [one for one in child.events() if isinstance(one, Announce)])
        assert said == [Announce(values={})]
        socket.create_connection((address, port), timeout=5).close()
        with socket.socket() as elsewhere:
            assert elsewhere.connect_ex(("127.0.0.2", port)) == errno.ECONNREFUSED
    finally:
        os.kill(child.pid, signal.SIGTERM)
        assert eventually(child.ended)
        seen = child.reap()
    assert seen.code == -signal.SIGTERM


COUNTING = """
import pickle
from scaling.frameworks.mx.optimizers import CountingSGD
from scaling.frameworks.mx.library import mx
options = {"learning_rate": 0.5, "momentum": 0.0, "wd": 0.0, "rescale_grad": 0.25}
sent = CountingSGD(2, options)
updater = mx.optimizer.get_updater(pickle.loads(pickle.dumps(sent, 0)))
weight, counter = mx.nd.ones(3), mx.nd.zeros(1)
for _ in range(3):
    updater(1, mx.nd.ones(3), weight)
    updater(2, mx.nd.ones(1) * 77, counter)
print(weight.asnumpy().tolist(), counter.asnumpy().tolist())
"""


@needs_mxnet
@pytest.mark.parametrize("together", ["0", "4"])
def test_the_optimizer_counts_after_its_journey_to_a_server(together: str) -> None:
    environ = {**os.environ, "MXNET_OPTIMIZER_AGGREGATION_SIZE": together}
    done = subprocess.run(
        [sys.executable, "-c", COUNTING], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[0] == "[0.625, 0.625, 0.625] [3.0]"


@needs_mxnet
def test_a_server_that_is_no_fork_takes_the_optimizer(tmp_path: Path) -> None:
    """It unpickles the optimizer before Gluon exists."""
    flags = ["--strategy", "mxnet:dist_async", "--fresh-workers", "--world-sizes", "1", "--kinds", "exchange"]
    brief = ["--rounds", "1", "--windows", "3", "--window-s", "0.01", "--no-page", "--device", "cpu"]
    command = [sys.executable, "-m", "scaling.run", "--ranks", "1", *flags, *brief]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
