"""A process that has imported a framework, initialised nothing, and forks a worker whenever its agent asks.

python -m scaling.worker.fork_server MODULE... [-- MODULE...]      (started by an agent only)

A request is the worker's environment, with its commands, events and log as file descriptors; the answer is its
pid. If the agent sends a pid, the answer is that worker's wait status. The agent cannot wait itself: a second fork
for that would copy a framework's page tables again (torch: 24 ms).
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import msgspec

from scaling.hosts import proc
from scaling.records.task import (
    CHILD_MARK,
    FORK_FD,
    FORK_READY,
    FORK_TOUCHED,
    MOST_REQUEST_BYTES,
    OPTIONAL_MODULES,
    ForkRequest,
)
from scaling.worker import run_task

# Fields of /proc/PID/stat after the command's closing bracket; the environment begins at the 50th of proc(5).
ENV_START = 47
CUDA_DEVICE = "/dev/nvidia-uvm"


def main(modules: list[str]) -> int:
    """Import the modules, report that, and fork until the agent is gone or a fork fails."""
    agent = socket.socket(fileno=int(os.environ[FORK_FD]))
    proc.end_with_parent()  # an import that hangs reads no socket
    if select.select([agent], [], [], 0)[0]:
        return 0  # readable before any request: the agent is gone
    run_task.draw_nothing()
    _import(modules)
    gc.collect()
    gc.freeze()  # the first collection of a worker then copies no imports
    # CUDA opens a device that NVML leaves alone.
    if any(os.path.realpath(fd) == CUDA_DEVICE for fd in Path("/proc/self/fd").iterdir()):
        agent.send(FORK_TOUCHED)
        return 1
    agent.send(FORK_READY)
    while True:
        data, fds, _, _ = socket.recv_fds(agent, MOST_REQUEST_BYTES, 3)
        if not data:
            return 0
        if not fds:
            agent.send(str(os.waitpid(int(data), 0)[1]).encode())
        elif os.fork() == 0:
            _become_worker(agent, data, fds)
        for fd in fds:
            os.close(fd)


def _import(modules: list[str]) -> None:
    """Import all modules; workers report why one after OPTIONAL_MODULES cannot be imported."""
    first = modules.index(OPTIONAL_MODULES) if OPTIONAL_MODULES in modules else len(modules)
    for module in (*modules[:first], "scaling.frameworks.base"):
        import_module(module)
    for module in modules[first + 1 :]:
        with suppress(Exception):
            import_module(module)


def _become_worker(agent: socket.socket, data: bytes, fds: list[int]) -> NoReturn:
    """Exceptions end here: only the server itself exits in order."""
    try:
        _work(agent, msgspec.json.decode(data, type=ForkRequest), fds)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _work(agent: socket.socket, request: ForkRequest, fds: list[int]) -> NoReturn:
    os.setsid()
    agent.send(str(os.getpid()).encode())
    agent.close()
    commands_fd, events_fd, log_fd = fds
    for fd, standard in ((commands_fd, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(fd, standard)
    os.close(commands_fd)
    os.close(log_fd)
    os.environ.clear()
    os.environ.update(request.environ)
    _mark(request.environ[CHILD_MARK])
    run_task.run_and_exit(events_fd)


def _mark(mark: str) -> None:
    """Write the mark where the kernel shows this process's environment: a fork has its parent's there."""
    shown = Path("/proc/self/environ").read_bytes()
    offset = shown.find(f"{CHILD_MARK}=".encode()) + len(CHILD_MARK) + 1
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[ENV_START])
    room = shown.index(b"\0", offset) - offset
    text = mark.encode()[: room - 1] + b"\0"
    ctypes.memmove(start + offset, text, len(text))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
