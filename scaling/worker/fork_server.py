"""A process that has imported a framework, initialised nothing, and forks a worker whenever its agent asks.

python -m scaling.worker.fork_server MODULE... [-- MODULE...]      (started by an agent only)

Half of a short run would else be imports. A request is one message on a socket: the worker's environment, with its
commands, its events and its log as file descriptors; the answer is its pid. The worker stays this process's child,
which waits for it when its agent sends that pid, and answers with its wait status: a second fork, by which the
agent would adopt it, copies and frees a framework's page tables once more (torch: 24 ms after another 24).
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

from scaling.hosts import parents
from scaling.records.forks import FORK_FD, MARK, MAX_BYTES, OPTIONAL, READY, Request
from scaling.worker import run_task

# Of /proc/PID/stat after the command's closing bracket: where the environment begins, the 50th of proc(5).
ENV_START = 47


def main(modules: list[str]) -> int:
    """Import, say so, fork until the agent is gone or a fork fails."""
    agent = socket.socket(fileno=int(os.environ[FORK_FD]))
    parents.end_with_parent()  # an import that hangs looks at no socket
    if select.select([agent], [], [], 0)[0]:
        return 0  # nothing is asked before it is ready: the agent was gone before that
    run_task.draw_nothing()
    _import(modules)
    gc.collect()
    gc.freeze()  # what was imported is then not copied by each worker's first collection
    agent.send(READY)
    while True:
        data, fds, _, _ = socket.recv_fds(agent, MAX_BYTES, 3)
        if not data:
            return 0
        if not fds:
            agent.send(str(os.waitpid(int(data), 0)[1]).encode())
        elif os.fork() == 0:
            _become_worker(agent, data, fds)
        for fd in fds:
            os.close(fd)


def _import(modules: list[str]) -> None:
    """All of them; of those after OPTIONAL whatever can be imported: the children that need the others tell why
    not."""
    first = modules.index(OPTIONAL) if OPTIONAL in modules else len(modules)
    for module in (*modules[:first], "scaling.frameworks.base"):
        import_module(module)
    for module in modules[first + 1 :]:
        with suppress(Exception):
            import_module(module)


def _become_worker(agent: socket.socket, data: bytes, fds: list[int]) -> NoReturn:
    """Whatever is raised in here ends here: an orderly exit is the server's own."""
    try:
        _work(agent, msgspec.json.decode(data, type=Request), fds)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _work(agent: socket.socket, request: Request, fds: list[int]) -> NoReturn:
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
    _mark(request.environ[MARK])
    run_task.run_and_exit(events_fd)


def _mark(mark: str) -> None:
    """Write the mark where the kernel shows this process's environment: a fork still has its parent's there."""
    shown = Path("/proc/self/environ").read_bytes()
    offset = shown.find(f"{MARK}=".encode()) + len(MARK) + 1
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[ENV_START])
    room = shown.index(b"\0", offset) - offset
    text = mark.encode()[: room - 1] + b"\0"
    ctypes.memmove(start + offset, text, len(text))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
