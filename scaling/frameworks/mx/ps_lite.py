"""The processes of ps-lite's scheduler and servers. strategies.py sets their environment."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from scaling.frameworks.abilities import LOOK_S, refuses, until_it_listens
from scaling.frameworks.mx import importing
from scaling.frameworks.mx.strategies import node_of
from scaling.records.task import Task

# Seconds that a server waits for the scheduler, before ZeroMQ's own retries.
SCHEDULER_S = 1.0


def serve(task: Task, announce: Callable[[dict[str, str]], None]) -> None:
    """Run as DMLC_ROLE: `import mxnet` does so, and returns when all workers have left."""
    role, address, port = node_of(task)
    watch = threading.Thread(target=_announce_when_up, args=(address, port, announce), daemon=True)
    watch.start()
    # Not through library.py, which the workers' optimiser loads during this import.
    is_imported = "mxnet" in sys.modules
    if role == "server":
        until_it_listens(task.address, task.ports[0], SCHEDULER_S)
    if not is_imported:
        importing.preload()
        with importing.restored():
            import_module("mxnet")
    else:  # forked from a process that has imported MXNet as a worker
        server_module: Any = import_module("mxnet.kvstore.kvstore_server")
        server_module._init_kvstore_server_module()


def _announce_when_up(address: str, port: int, announce: Callable[[dict[str, str]], None]) -> None:
    while refuses(address, port):
        time.sleep(LOOK_S)
    announce({})
