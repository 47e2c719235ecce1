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

Tests replace the trainer's clock; then nothing sleeps.
"""

from __future__ import annotations

import ctypes
import errno
import gzip
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaling.frameworks.abilities import Learnt, Tracer
from scaling.frameworks.base import SKILLS, Helper, Option, Strategy, Trainer, Traits
from scaling.records.point import BESIDE, EXCHANGING, Pass
from scaling.records.task import Task
from scaling.workloads import models, weights

# ---------------------------------------------------------------- faults
#
# The faults that the strategy plants in a worker.


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
    trainer = server = __name__

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


# ---------------------------------------------------------------- traffic
#
# In each step every rank sends `traffic_bytes` to rank 0 and receives them back.


CONNECT_S = 20.0
CHUNK_BYTES = 1 << 20


class Star:
    """TCP connections of one point, with rank 0 in the centre, on its reserved port."""

    def __init__(self, task: Task, count_bytes: int) -> None:
        """Connect all ranks. Raises OSError if the port is taken or rank 0 cannot be reached."""
        self._count_bytes, self._chunk = count_bytes, memoryview(bytearray(CHUNK_BYTES))
        where, self._central = (task.address, task.ports[0]), task.rank == 0
        if not self._central:
            self._peers = [_connect(where)]
            return
        count = task.point.world_size - 1
        with socket.create_server(where, backlog=count) as server:
            server.settimeout(CONNECT_S)
            self._peers = [server.accept()[0] for _ in range(count)]
        for peer in self._peers:
            peer.settimeout(None)

    def exchange(self) -> None:
        for act in (self._receive, self._send) if self._central else (self._send, self._receive):
            for peer in self._peers:
                act(peer)

    def close(self) -> None:
        for peer in self._peers:
            peer.close()

    def _send(self, peer: socket.socket) -> None:
        for left in range(self._count_bytes, 0, -CHUNK_BYTES):
            peer.sendall(self._chunk[:left])

    def _receive(self, peer: socket.socket) -> None:
        left = self._count_bytes
        while left > 0:
            if not (got := peer.recv_into(self._chunk, min(CHUNK_BYTES, left))):
                raise ConnectionError("connection closed by peer")
            left -= got


def _connect(where: tuple[str, int]) -> socket.socket:
    deadline_s = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_connection(where)
        except ConnectionRefusedError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


# ---------------------------------------------------------------- trainer

# The fraction of a step's compute that each pass takes.
PARTS: Mapping[Pass, float] = {"forward": 1 / 3, "backward": 0.9, "step": 1.0}

# Shorter feeds cannot be timed.
LEAST_FEED_S = 1e-4


class FakeTrainer:
    """A trainer that sleeps by its script. `clock` and `sleep` may be virtual."""

    parameters = 1000
    gradient_bytes = 4000
    device_name = "fake"

    def __init__(
        self, task: Task, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.versions: dict[str, str] = {}
        self.notes: tuple[str, ...] = ()
        self._task = task
        self._script = Fake.options_of(task.point)
        self._clock, self._sleep = clock, sleep
        point = task.point
        # Ranks of a point share its noise: in lock-step they are equally slow.
        self._random = random.Random(f"{task.seed}/{point.key}")
        self._step_s = scripted_step_s(task, self._script) * self._deviation("round_noise")
        self._due_s = 0.0
        self._stepped = False
        self._steps = 0
        self.star: Star | None = None
        traits = Fake().traits(point.strategy)
        self._drives = traits.drives
        self.samples = 0
        self.rates: list[float] = []
        if point.kind in EXCHANGING and not traits.synchronous:
            self.staleness = lambda: point.world_size - 1.0

    def step(self) -> None:
        """Sleep until the scripted end. It is an absolute time, so delays do not add up."""
        self._steps += 1
        self._stepped = True
        if self._steps == self._script["fail_step"]:
            self._plant(FAULTS)
        now_s = self._clock()
        begin_s = self._due_s if 0 <= now_s - self._due_s < 0.5 * self._step_s else now_s
        self._due_s = begin_s + self._step_s * self._deviation("noise")
        self._sleep(max(0.0, self._due_s - now_s))
        if self.star is not None:
            self.star.exchange()
        point = self._task.point
        if point.kind != "comm":
            alone = self._drives == "device" or point.kind in ("solo", "each", *BESIDE)
            self.samples += point.workload.batch_size if alone else point.global_batch_size

    def unsynced_step(self) -> None:
        exchange_s = self._script["exchange_s"] if self._task.point.world_size > 1 else 0.0
        star, self.star, self._step_s = self.star, None, self._step_s - exchange_s
        self.step()
        self.star, self._step_s = star, self._step_s + exchange_s

    def tracers(self) -> list[Tracer]:
        return [FakeTracer(self._clock, fails=self._fails("trace"))]

    def sync(self) -> None:
        """Start the schedule anew after a pause. No step runs in the background."""
        if not self._stepped:
            self._due_s = 0.0
        self._stepped = False

    def loss(self) -> float | None:
        if self._task.point.kind in ("comm", "feed") or not self._task.point.workload.trains:
            return None
        nan = self._fails("nan") and self._steps >= self._script["fail_step"]
        return float("nan") if nan else 2.3 * 0.99**self._steps

    def set_rate(self, rate: float) -> None:
        self.rates.append(rate)

    def average_statistics(self) -> None:
        """Do nothing: there are no statistics."""

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        return np.zeros(len(inputs), np.int64)

    def learnt(self) -> Learnt:
        return Learnt(dict(weights.draw(models.at(self._task.point), self._task.seed)), ())

    def digest(self) -> str | None:
        if self._steps and self._fails("digest-raise"):
            raise RuntimeError("scripted failure of the digest")
        return f"differs-{self._task.rank}" if self._fails("digest") else "fake" if self._steps else "begun"

    def peak_memory_bytes(self) -> int:
        return 0

    def close(self) -> None:
        """Close the connections. The faults that follow the result are planted here."""
        self._plant(LEAVING_FAULTS)
        if self.star is not None:
            self.star.close()

    def _deviation(self, option: str) -> float:
        sigma = self._script[option]
        return max(0.1, self._random.gauss(1.0, sigma)) if sigma else 1.0

    def _fails(self, fault: str) -> bool:
        script, point = self._script, self._task.point
        return (
            script["fail"] == fault
            and script["fail_kind"] == point.kind
            and script["fail_rank"] == self._task.rank
            and script["fail_world"] in (0, point.world_size)
            and script["fail_cores"] == point.hardware.cores
            and script["fail_batch"] <= point.workload.batch_size
        )

    def fail_early(self) -> None:
        self._plant(EARLY_FAULTS)

    def _plant(self, faults: Mapping[str, Fault]) -> None:
        for planted, act in faults.items():
            if self._fails(planted):
                act(self._task)


class FakeTracer(Tracer):
    """A tracer that writes one event, from its start to its end."""

    def __init__(self, clock: Callable[[], float], *, fails: bool) -> None:
        self._clock, self._fails = clock, fails

    def start(self, path: Path) -> None:
        if self._fails:
            raise RuntimeError("a profiler that does not start")
        self._path, self._begun_s = path, self._clock()

    def stop(self) -> None:
        begun_us, end_us = 1e6 * self._begun_s, 1e6 * self._clock()
        event = {"ph": "X", "name": "steps", "pid": 0, "tid": 0, "ts": begun_us, "dur": end_us - begun_us}
        self._path.write_bytes(gzip.compress(msgspec.json.encode({"traceEvents": [event]}), mtime=0))


def scripted_step_s(task: Task, script: Mapping[str, Any]) -> float:
    """Return the seconds of one step of this rank without noise, by the formula above."""
    point = task.point
    several, slowed = point.world_size > 1, 1.0 + script["slow_by"] * (script["slow_host"] in task.hosts)
    alone_s = (script["step_s"] + script["sample_s"] * point.workload.batch_size) * PARTS[point.workload.pass_]
    alone_s *= script["cpu_times"] if point.hardware.cores else 1
    compute_s = alone_s * (1.0 + script["contention"] * several)
    slowest_s = compute_s * (1.0 + script["straggle"] * several)
    feed_s = script["feed_s"] * (1.0 + script["feed_contention"] * several)
    beside_s = slowest_s if task.rank == point.world_size - 1 else compute_s
    exchange_s = script["exchange_s"] * slowed * several
    seconds: float = {
        "solo": alone_s + script["feed_s"],
        "each": alone_s + script["feed_s"],
        "together": beside_s + feed_s,
        "held": beside_s,
        "feed": max(feed_s, LEAST_FEED_S),
        "comm": script["comm_s"] * slowed,
    }.get(point.kind, slowest_s + feed_s + exchange_s + script["overhead_s"])
    return seconds


def connect(task: Task) -> Trainer:
    script = Fake.options_of(task.point)
    trainer = FakeTrainer(task)
    trainer.fail_early()
    if script["helper"] and task.point.kind == "exchange":
        host, _, port = os.environ["FAKE_SERVER"].rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()
    if script["traffic_bytes"] and task.point.kind in EXCHANGING and task.point.world_size > 1:
        trainer.star = Star(task, script["traffic_bytes"])
    time.sleep(script["start_s"])
    return trainer


# The script also says how long a feed takes.
pipeline = connect
