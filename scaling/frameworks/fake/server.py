"""A server of the scripted strategy: it answers until its point ends, or dies if its script says so."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable

from scaling.frameworks.base import read_options
from scaling.frameworks.fake.strategy import OPTIONS
from scaling.records.task import Task


def serve(task: Task, announce: Callable[[dict[str, str]], None]) -> None:
    script = read_options(OPTIONS, task.point.options)
    placed = task.servers[int(task.role.partition("-")[2])] if "-" in task.role else None
    address = placed.address if placed else task.address
    with socket.create_server((address, placed.port if placed else 0)) as server:
        announce({task.role.upper().replace("-", ""): f"{address}:{server.getsockname()[1]}"})
        if script["fail"] == "server":
            time.sleep(script["server_s"])
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            server.accept()[0].close()
