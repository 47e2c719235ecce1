"""ps-lite's scheduler and servers: what their processes are told and how they run, and the optimiser with
which a server counts the pushes of an asynchronous mode."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from scaling.frameworks import network_env
from scaling.frameworks.base import Helper
from scaling.frameworks.mx import rank
from scaling.records.point import SERVER
from scaling.records.task import Server, Task

SCHEDULER = "scheduler"
PROBE_S = 0.02
# glibc gives a server's buffers back to the kernel after a message and faults them in for the next one, or does
# not, as its heap happens to lie: from one start to the next 200 to 11,000 page faults a second on two cores. With
# these a server used 17.2 to 17.8 % of a core, without 18.5 to 22.4 % (issue 3).
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}


# ---------------------------------------------------------------- before the worker


def helpers(task: Task) -> list[Helper]:
    """The scheduler beside rank 0, and the point's servers where they are placed."""
    servers = range(len(task.servers))
    return [Helper(name=SCHEDULER), *(Helper(name=f"{SERVER}{index}", server=index) for index in servers)]


def environ(task: Task, *, bigarray_bound: int) -> dict[str, str]:
    """ps-lite's variables, for a worker or a helper.

    PORT is a server's own port; without it, as for workers, ps-lite takes a free one.
    """
    found = {
        "DMLC_ROLE": _role(task),
        "DMLC_PS_ROOT_URI": task.address,
        "DMLC_PS_ROOT_PORT": str(task.ports[0]),
        "DMLC_NUM_WORKER": str(task.point.world_size),
        "DMLC_NUM_SERVER": str(len(task.servers)),
        **network_env.ps_lite(task, _address(task)),
        "MXNET_KVSTORE_BIGARRAY_BOUND": str(bigarray_bound),
    }
    if (server := _server(task)) is not None:
        found |= {"PORT": str(server.port), **KEEP_MEMORY}
    return found


def _role(task: Task) -> str:
    return task.role if task.role in ("worker", SCHEDULER) else "server"


def _server(task: Task) -> Server | None:
    return task.servers[int(task.role.removeprefix(SERVER))] if _role(task) == "server" else None


def _address(task: Task) -> str:
    if task.role == SCHEDULER:
        return task.address
    server = _server(task)
    return server.address if server is not None else task.addresses[task.rank]


# ---------------------------------------------------------------- in a helper


def serve(task: Task, announce: Callable[[dict[str, str]], None]) -> None:
    """Run as the environment's DMLC_ROLE: `import mxnet` does, and only returns when all workers have left."""
    server = _server(task)
    port = task.ports[0] if server is None else server.port
    watch = threading.Thread(target=_announce_when_up, args=(_address(task), port, announce), daemon=True)
    watch.start()
    rank.load_mxnet()


def _announce_when_up(address: str, port: int, announce: Callable[[dict[str, str]], None]) -> None:
    """Announce once something listens; the address that is reserved for us but not yet served refuses."""
    while not _listens(address, port):
        time.sleep(PROBE_S)
    announce({})


def _listens(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) != errno.ECONNREFUSED


# ---------------------------------------------------------------- in both


def counting_sgd(counter: int, options: dict[str, Any]) -> Any:
    """SGD with these options that adds 1 to the weight of key `counter` with each push to it.

    Workers send the optimiser to the servers by pickle, which here carries this function and its arguments:
    the class cannot stand at the top of a module that agents import.
    """
    mxnet = rank.load_mxnet()

    class CountingSGD(mxnet.optimizer.SGD):  # type: ignore[misc, name-defined, unused-ignore]
        def __reduce__(self) -> tuple[Any, ...]:
            return counting_sgd, (counter, options)

        def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
            # A server updates one key at a time, as a sequence of one or, without aggregation, as it is.
            if index in (counter, (counter,), [counter]):
                for each in weight if isinstance(weight, list | tuple) else [weight]:
                    each += 1  # noqa: PLW2901  in place
            else:
                super().update_multi_precision(index, weight, grad, state)

    return CountingSGD(**options)
