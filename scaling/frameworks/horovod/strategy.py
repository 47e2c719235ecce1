"""The agent's side of Horovod's three bindings: options, environment, and what is missing.

Horovod's MPI controller and elastic jobs are not supported. Horovod 0.28 has hierarchical all-reduce over MPI
only, so that is no option. Workers need the rendezvous only until they are connected.
"""

from __future__ import annotations

import mmap
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scaling.frameworks import network_env
from scaling.frameworks.base import SKILLS, Helper, Option, Strategy, Traits, read_own_options, timeout_s
from scaling.frameworks.options import count_from_0, number_from_0, one_of
from scaling.records import crossing
from scaling.records.crossing import Parts
from scaling.records.point import EXCHANGING, Device, Point, Record
from scaling.records.task import Task

RENDEZVOUS = "rendezvous"
# In a build whose process sets obey HOROVOD_GLOO_IFACE (launch/horovod_project.cmake). In Horovod's own build they
# listen at the address of the host's name, and end in SIGSEGV or SIGABRT if this host lacks it.
OBEYS = b"Gloo of a process set is on interface"
BUILD = "pip uninstall horovod and ./launch/install horovod: its build obeys --interconnect"
MIB = 1 << 20

# Horovod's defaults (horovod/common/operations.cc, BackgroundThreadLoop).
OPTIONS: Mapping[str, Option] = {
    "fusion_threshold_mb": Option(
        type=number_from_0, default=128.0, help="MiB of gradients fused into one exchange; 0: each alone"
    ),
    "cycle_time_ms": Option(
        type=number_from_0, default=1.0, help="ms between two checks for gradients that all ranks have"
    ),
    "cache_capacity": Option(
        type=count_from_0,
        default=1024,
        help="gradients in the response cache; 0: ranks agree on names in every step",
    ),
    "compression": Option(
        type=one_of("none", "fp16"), default="none", help="type of gradients when sent: none (unchanged) or fp16"
    ),
}


def options_of(point: Point) -> dict[str, Any]:
    """Return the values of Horovod's options. A point also carries those of its framework's loop."""
    return read_own_options(OPTIONS, point.options)


class Horovod(Strategy):
    """Base of the strategies of all bindings, before the framework's own; `framework` is the binding's name."""

    framework = ""
    server = "scaling.frameworks.horovod.rendezvous"
    obeying = BUILD
    preload: tuple[str, ...] = (server,)

    def traits(self, _name: str) -> Traits:
        """Return one port, for the rendezvous, and a measured share of a core for polling with torch. Ranks agree
        every cycle_time_ms on what to exchange; the cycle is dilated too."""
        return Traits(ports=1, nccl=True, polling_cores=0.12, accuracy=SKILLS)

    def missing(self, name: str, device: Device = "cpu") -> str | None:
        return super().missing(name, device) or self.binding_missing(name, device)

    def binding_missing(self, name: str, device: Device = "cpu") -> str | None:
        """Return why the binding cannot run, if the framework can."""
        bindings = self._bindings()
        if bindings is None:
            return "horovod is not installed: ./launch/install horovod"
        if not bindings:
            return f"horovod is built without {self.framework}: ./launch/install horovod"
        # A build without NCCL's all-reduce does not contain this symbol.
        if device == "cuda" and not any(_holds(one, b"ncclAllReduce") for one in bindings):
            return "horovod is built without NCCL, which it needs on GPUs: ./launch/install horovod with nvcc"
        if self.name_address(name) == "":
            return (
                f"horovod listens at the address of the host's name, and {socket.gethostname()} is no address of "
                f"this host: add a line `ADDRESS {socket.gethostname()}` to /etc/hosts, or {BUILD}"
            )
        return None

    def name_address(self, _name: str) -> str | None:
        bindings = self._bindings()
        return address_of_name() if bindings and not any(_holds(one, OBEYS) for one in bindings) else None

    def _bindings(self) -> list[Path] | None:
        package = find_spec("horovod")
        if package is None or package.origin is None:
            return None
        return sorted(Path(package.origin).parent.glob(f"{self.framework}/mpi_lib*.so"))

    def helpers(self, _task: Task) -> list[Helper]:
        return [Helper(name=RENDEZVOUS, awaited=False)]

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        common = super().environ(task, announced)
        if task.point.kind not in EXCHANGING or task.role == RENDEZVOUS:
            return common
        options = options_of(task.point)
        return {
            **common,
            **rank_environ(task),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(int(timeout_s(task.clocks))),
            "HOROVOD_FUSION_THRESHOLD": str(
                int(options["fusion_threshold_mb"] * MIB / task.point.hardware.shrink)
            ),
            "HOROVOD_CYCLE_TIME": str(options["cycle_time_ms"] * task.point.hardware.dilate),
            "HOROVOD_CACHE_CAPACITY": str(options["cache_capacity"]),
            # Lets a trace begin later; nothing is written until then.
            **({"HOROVOD_TIMELINE": "DYNAMIC"} if task.is_traced else {}),
            # For the Gloo inside Horovod, which is also its control plane.
            "HOROVOD_GLOO_IFACE": task.place.interface,
            **network_env.nccl(task),
            **network_env.nccl_log(task),
        }

    def wire_parts(self, point: Point) -> Parts:
        half = options_of(point)["compression"] == "fp16"
        return (0.5, 0.5) if half else crossing.WHOLE


def rank_environ(task: Task) -> dict[str, str]:
    """Return a rank's place among all ranks, and how it finds them."""
    slot = slots(task.hosts)[task.rank]
    return {
        **{f"HOROVOD_{name.upper()}": str(getattr(slot, name)) for name in Slot.__struct_fields__},
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": task.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(task.ports[0]),
    }


@lru_cache
def address_of_name() -> str:
    """Return the address that Gloo takes without an interface: the host name's first bindable one, or ""."""
    with suppress(OSError, UnicodeError):
        for family, kind, number, _, address in socket.getaddrinfo(
            socket.gethostname(), None, type=socket.SOCK_STREAM
        ):
            with suppress(OSError), socket.socket(family, kind, number) as probe:
                probe.bind(address)
                return str(address[0])
    return ""


def _holds(binding: Path, words: bytes) -> bool:
    with binding.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return mapped.find(words) >= 0


class Slot(Record, frozen=True, kw_only=True):
    """A rank's place among all ranks, on its host, and among ranks of the same local rank."""

    hostname: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def slots(hosts: Sequence[str]) -> tuple[Slot, ...]:
    """Return the slot of each rank, given the host of each rank, in any order."""
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
