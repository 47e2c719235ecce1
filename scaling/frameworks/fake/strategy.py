"""The scripted strategy: it sleeps for a step, moves real bytes and fails on command, without a framework.

Every `fake:<mode>` is this module. `--option` sets its script. Words of the mode, joined by "-", choose traits:

* `async`: not synchronous
* `node`, `point`: what one worker drives
* `ps`: has servers
* `ports`: one port per rank

The script gives the seconds of a step. With N ranks:

    compute(rank) = step_s x (1 + contention) x (1 + straggle, on the last rank)     N > 1
    feed = feed_s x (1 + feed_contention)                                            N > 1
    solo = step_s + feed,  together = compute(rank) + feed,  held = compute(rank),  comm = comm_s
    exchange = max over ranks of compute + feed + exchange_s         (overhead_s more at every N)

A sample adds sample_s to step_s. A forward pass takes a third of compute, both passes take 0.9 of it. Each time is
multiplied by seeded noise. So the right speedup, efficiency and loss by cause can be computed by hand.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from scaling.frameworks.base import SKILLS, Helper, Option, Strategy, Traits
from scaling.records.task import Task

# ---------------------------------------------------------------- faults
#
# The faults that the scripted strategy plants in a worker.


# Above the limit of a test's cgroup, below the memory of any machine.
EATEN_BYTES = 1 << 30


def fault(name: str) -> str:
    """Check a fault's name. Raises ValueError for any other word."""
    if name and name not in (*FAULTS, *LEAVING_FAULTS, *EARLY_FAULTS, *ELSEWHERE):
        raise ValueError(name)
    return name


def _raise(task: Task) -> None:
    raise RuntimeError(f"scripted failure of rank {task.rank}")


def _out_of_memory(_: Task) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, hard))
    try:
        bytearray(2 << 30)
    finally:  # tests run this in their own process
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _eat(_: Task) -> None:
    # Written pages: the kernel does not back untouched ones with memory.
    bytearray(b"x") * EATEN_BYTES


def _print(_: Task) -> None:
    for _line in range(5 * 1024):
        sys.stdout.write("x" * 1023 + "\n")


def _hang(_: Task) -> None:
    time.sleep(3600)


def _fork(_: Task) -> None:
    # One stays in the worker's group, the other starts its own session.
    subprocess.Popen(["sleep", "3600"])
    subprocess.Popen(["sleep", "3600"], start_new_session=True)


def _port(task: Task) -> None:
    if task.retry == 0:
        raise OSError(errno.EADDRINUSE, f"Address already in use: port {task.ports[0]}")


def _port_always(_: Task) -> None:
    raise OSError(errno.EADDRINUSE, "Address already in use")


Fault: TypeAlias = Callable[[Task], object]
FAULTS: dict[str, Fault] = {
    "raise": _raise,
    "exit-0": lambda _: os._exit(0),
    "segfault": lambda _: ctypes.string_at(0),
    "bus": lambda _: os.kill(os.getpid(), signal.SIGBUS),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "oom": _out_of_memory,
    "eat": _eat,
    "print": _print,
    "hang": _hang,
    "fork": _fork,
}
LEAVING_FAULTS: dict[str, Fault] = {
    "hang-leaving": _hang,
    "raise-leaving": _raise,
    "abort-leaving": lambda _: os.abort(),
}
EARLY_FAULTS: dict[str, Fault] = {"hang-before-ready": _hang, "port": _port, "port-always": _port_always}
# The trainer, its tracer and the server have these.
ELSEWHERE = ("nan", "digest", "digest-raise", "trace", "server")


OPTIONS: Mapping[str, Option] = {
    "step_s": Option(type=float, default=0.01, help="seconds of compute of one step on one rank"),
    "sample_s": Option(type=float, default=0.0, help="seconds that a sample of the batch adds to a step"),
    "cpu_times": Option(type=float, default=1.0, help="factor of a step's time on a CPU next to GPUs"),
    "exchange_s": Option(type=float, default=0.0, help="seconds of exposed exchange of one step, N > 1"),
    "comm_s": Option(type=float, default=0.001, help="seconds of the exchange without compute"),
    "overhead_s": Option(type=float, default=0.0, help="seconds that the strategy adds at every N"),
    "feed_s": Option(type=float, default=0.0, help="seconds that a rank waits for its next batch"),
    "feed_contention": Option(type=float, default=0.0, help="fraction by which feeds slow each other"),
    "contention": Option(type=float, default=0.0, help="fraction by which ranks slow each other"),
    "slow_host": Option(type=str, default="", help="a host that slows every exchange that it takes part in"),
    "slow_by": Option(type=float, default=1.0, help="fraction by which slow_host slows an exchange"),
    "straggle": Option(type=float, default=0.0, help="fraction by which the last rank is slower"),
    "noise": Option(type=float, default=0.0, help="relative deviation of each step"),
    "round_noise": Option(type=float, default=0.0, help="relative deviation of each point"),
    "traffic_bytes": Option(type=int, default=0, help="bytes that each rank sends to rank 0 and back in a step"),
    "start_s": Option(type=float, default=0.0, help="seconds until ready"),
    "helper": Option(type=bool, default=False, help="needs a server, which must announce itself first"),
    "fail": Option(type=fault, default="", help="the fault to plant"),
    "server_s": Option(type=float, default=0.3, help="seconds until a server fails (fail=server)"),
    "fail_rank": Option(type=int, default=0, help="the rank that fails"),
    "fail_step": Option(type=int, default=4, help="the step in which it fails"),
    "fail_kind": Option(type=str, default="exchange", help="the kind of point that fails"),
    "fail_batch": Option(type=int, default=0, help="the smallest batch per device that fails"),
    "fail_cores": Option(type=int, default=0, help="cores of the CPU next to GPUs that fails (0: no such CPU)"),
    "fail_world": Option(type=int, default=0, help="the world size that fails (0: all)"),
}


class Fake(Strategy):
    """The strategy of every `fake:<mode>`."""

    names = ("fake:plain",)
    baseline = "fake:plain"
    options = OPTIONS
    trainer = "scaling.frameworks.fake.trainer"
    server = "scaling.frameworks.fake.strategy"

    def traits(self, name: str) -> Traits:
        words = name.partition(":")[2].split("-")
        return Traits(
            drives="node" if "node" in words else "point" if "point" in words else "device",
            ports=1,
            rank_ports="ports" in words,
            servers="ps" in words,
            synchronous="async" not in words,
            accuracy=("evaluate",) if "ps" in words else SKILLS,
            passes=("forward", "backward", "step") if name == self.baseline else ("step",),
        )

    def helpers(self, task: Task) -> list[Helper]:
        placed = [Helper(name=f"server-{index}", server=index) for index in range(len(task.servers))]
        asked = Fake.options_of(task.point)["helper"]
        return [Helper(name="server"), *placed] if asked else placed

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        return {
            "FAKE_PORT": ",".join(map(str, task.ports)),
            "FAKE_RANK_PORTS": ",".join(map(str, task.rank_ports)),
            **{f"FAKE_{key}": value for key, value in announced.items()},
        }


def serve(task: Task, announce: Callable[[dict[str, str]], None]) -> None:
    """Answer as a server until the point ends, or die if the script says so."""
    script = Fake.options_of(task.point)
    placed = task.servers[int(task.role.partition("-")[2])] if "-" in task.role else None
    address = placed.address if placed else task.address
    with socket.create_server((address, placed.port if placed else 0)) as server:
        announce({task.role.upper().replace("-", ""): f"{address}:{server.getsockname()[1]}"})
        if script["fail"] == "server":
            time.sleep(script["server_s"])
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            server.accept()[0].close()
