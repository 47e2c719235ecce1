"""What Horovod's three bindings share: options, environment, what is missing, and its rendezvous, an HTTP
store in a helper on rank 0 through which Gloo's pairs find each other.

It does not know Horovod's MPI controller, nor elastic jobs. Hierarchical all-reduce is no option: Horovod
0.28 has it over MPI alone. Workers need the store only until they are joined.
"""

from __future__ import annotations

import socketserver
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scaling.frameworks import network_env
from scaling.frameworks.base import Helper, Option, Traits, read_options
from scaling.frameworks.options import count_from_0, number_from_0, one_of
from scaling.records.point import EXCHANGING, Device, Point, Record
from scaling.records.task import Task

RENDEZVOUS = "rendezvous"
MIB = 1 << 20
# The agent's clocks end a hung point and find its cause; Gloo's own timeout only comes after them.
TIMEOUT_MARGIN_S = 30.0

# The defaults are Horovod's own (horovod/common/operations.cc, BackgroundThreadLoop).
OPTIONS: Mapping[str, Option] = {
    "fusion_threshold_mb": Option(
        type=number_from_0, default=128.0, help="MiB of gradients that are exchanged as one; 0: each alone"
    ),
    "cycle_time_ms": Option(
        type=number_from_0, default=1.0, help="ms between two looks for gradients that all ranks have"
    ),
    "cache_capacity": Option(
        type=count_from_0,
        default=1024,
        help="gradients whose turn is agreed on by a bit; 0: by name each time",
    ),
    "compression": Option(
        type=one_of("none", "fp16"), default="none", help="of gradients on their way: none or fp16"
    ),
}


def options_of(point: Point) -> dict[str, Any]:
    """The values of these options; a point carries those of its framework's loop too."""
    return read_options(OPTIONS, {key: text for key, text in point.options.items() if key in OPTIONS})


# ---------------------------------------------------------------- before the worker


def traits(_name: str) -> Traits:
    """One port, for the rendezvous."""
    return Traits(ports=1)


def devices(_name: str) -> tuple[Device, ...]:
    """Gloo on CPU and for emulated devices, NCCL on CUDA if Horovod was built with it."""
    return ("cpu", "cuda", "emulated")


def missing(framework: str) -> str | None:
    """Whether Horovod is installed with the framework's binding; neither is imported."""
    package = find_spec("horovod")
    if package is None or package.origin is None:
        return "horovod is not installed: ./launch/install horovod"
    if not any(Path(package.origin).parent.glob(f"{framework}/mpi_lib*.so")):
        return f"horovod is built without {framework}: ./launch/install horovod"
    return None


def helpers(_task: Task) -> list[Helper]:
    """The rendezvous, on rank 0."""
    return [Helper(name=RENDEZVOUS)]


class Slot(Record, frozen=True):
    """A rank as Horovod counts it: among all, on its host, and among the ranks of its local rank."""

    hostname: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def slots(hosts: Sequence[str]) -> tuple[Slot, ...]:
    """Return the places of ranks whose hosts are `hosts`, in any order of hosts."""
    locals_ = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    return tuple(
        Slot(
            hostname=host,
            rank=rank,
            size=len(hosts),
            local_rank=locals_[rank],
            local_size=hosts.count(host),
            cross_rank=locals_[:rank].count(locals_[rank]),
            cross_size=locals_.count(locals_[rank]),
        )
        for rank, host in enumerate(hosts)
    )


def environ(task: Task) -> dict[str, str]:
    """Horovod's variables of a worker; nothing for the rendezvous."""
    if task.point.kind not in EXCHANGING or task.role == RENDEZVOUS:
        return {}
    options, clocks = options_of(task.point), task.clocks
    slot = slots(task.hosts)[task.rank]
    return {
        **{f"HOROVOD_{name.upper()}": str(getattr(slot, name)) for name in Slot.__struct_fields__},
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": task.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(task.ports[0]),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(int(max(clocks.startup_s, clocks.stall_s) + TIMEOUT_MARGIN_S)),
        "HOROVOD_FUSION_THRESHOLD": str(int(options["fusion_threshold_mb"] * MIB / task.point.shrink)),
        "HOROVOD_CYCLE_TIME": str(options["cycle_time_ms"] * task.point.dilate),
        "HOROVOD_CACHE_CAPACITY": str(options["cache_capacity"]),
        **network_env.horovod(task),
        **network_env.nccl(task),
    }


# ---------------------------------------------------------------- in the helper


def serve(task: Task, announce: Callable[[dict[str, str]], None]) -> None:
    """Horovod's rendezvous on the reserved port of rank 0's address, until the point ends.

    Horovod's own starter would listen on all interfaces, at a random port.
    """
    from horovod.runner.http import http_server

    class Server(http_server.RendezvousHTTPServer):  # type: ignore[misc]
        # All ranks come at once.
        request_queue_size = 1024

        def server_bind(self) -> None:
            # HTTPServer asks the DNS for the address's name, which may take many seconds.
            socketserver.TCPServer.server_bind(self)

    with Server((task.address, task.ports[0]), http_server.RendezvousHandler, False) as server:
        # It reads a slot's fields by their names.
        server.init(slots(task.hosts))
        announce({"RENDEZVOUS": f"{task.address}:{task.ports[0]}"})
        server.serve_forever()
