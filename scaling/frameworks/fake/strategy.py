"""The scripted strategy: no framework, sleeps instead of training, moves real bytes and fails where told.

Any `fake:<mode>` is this module; its script comes by `--option`. Words of the mode, parted by "-", choose
traits: `fake:async`, `fake:node` and `fake:point` (what one worker drives), `fake:ps` (has servers),
`fake:ports` (a port per rank). With N ranks

    compute(rank) = step_s x (1 + contention) x (1 + straggle, on the last rank)     N > 1
    solo = step_s,  together = compute(rank),  comm = comm_s
    exchange = max over ranks of compute + exchange_s         (overhead_s more at every N)

each times its seeded noise, so that the right speedup, efficiency and loss by cause follow by hand.
Tests hand in a clock of their own; then nothing sleeps.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from scaling.frameworks.base import Helper, Option, Trainer, Traits, read_options
from scaling.frameworks.fake.faults import EARLY_FAULTS, FAULTS, fault
from scaling.frameworks.fake.traffic import Star
from scaling.records.point import EXCHANGING, Device, Point
from scaling.records.task import Task

NAMES = ("fake:plain",)
BASELINE = "fake:plain"
OPTIONS: Mapping[str, Option] = {
    "step_s": Option(type=float, default=0.01, help="seconds of compute of one step on one rank"),
    "exchange_s": Option(type=float, default=0.0, help="seconds of exposed exchange of one step, N > 1"),
    "comm_s": Option(type=float, default=0.001, help="seconds of the exchange without compute"),
    "overhead_s": Option(type=float, default=0.0, help="seconds that the strategy adds at every N"),
    "contention": Option(type=float, default=0.0, help="fraction by which ranks slow each other"),
    "straggle": Option(type=float, default=0.0, help="fraction by which the last rank is slower"),
    "noise": Option(type=float, default=0.0, help="relative deviation of each step"),
    "round_noise": Option(type=float, default=0.0, help="relative deviation of each point"),
    "traffic_bytes": Option(type=int, default=0, help="bytes to rank 0 and back, of each other rank in each step"),
    "start_s": Option(type=float, default=0.0, help="seconds until ready"),
    "helper": Option(type=bool, default=False, help="needs a server, which must announce itself first"),
    "fail": Option(type=fault, default="", help="the fault that is planted"),
    "server_s": Option(type=float, default=0.3, help="seconds after which a server fails that is told to"),
    "fail_rank": Option(type=int, default=0, help="the rank that fails"),
    "fail_step": Option(type=int, default=4, help="the step in which it fails"),
    "fail_kind": Option(type=str, default="exchange", help="the kind of point that fails"),
    "fail_world": Option(type=int, default=0, help="the world size that fails (0: all)"),
}


class FakeTrainer:
    """Sleeps by the script. `clock` and `sleep` may be virtual."""

    parameters = 1000
    gradient_bytes = 4000
    device_name = "fake"

    def __init__(
        self,
        task: Task,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.versions: dict[str, str] = {}
        self.notes: tuple[str, ...] = ()
        self._task = task
        self._script = read_options(OPTIONS, task.point.options)
        self._clock, self._sleep = clock, sleep
        point = task.point
        # Ranks of one point share its noise: in lock-step they are equally slow.
        self._random = random.Random(f"{task.seed}/{point.key}")
        self._step_s = scripted_step_s(task, self._script) * self._deviation("round_noise")
        self._due_s = 0.0
        self._stepped = False
        self._steps = 0
        self.star: Star | None = None
        self._drives = traits(point.strategy).drives
        self.samples = 0

    def step(self) -> None:
        """Sleep until the scripted end, absolute so that lateness does not add up."""
        self._steps += 1
        self._stepped = True
        self._fail_if_due()
        now_s = self._clock()
        begin_s = self._due_s if 0 <= now_s - self._due_s < 0.5 * self._step_s else now_s
        self._due_s = begin_s + self._step_s * self._deviation("noise")
        self._sleep(max(0.0, self._due_s - now_s))
        if self.star is not None:
            self.star.exchange()
        point = self._task.point
        if point.kind != "comm":
            alone = self._drives == "device" or point.kind in ("solo", "together")
            self.samples += point.batch_size if alone else point.global_batch_size

    def sync(self) -> None:
        """Nothing runs behind; a pause between two commands is not caught up on."""
        if not self._stepped:
            self._due_s = 0.0
        self._stepped = False

    def loss(self) -> float | None:
        """Falls by 1 % a step."""
        if self._task.point.kind == "comm":
            return None
        nan = self._due("nan")
        return float("nan") if nan else 2.3 * 0.99**self._steps

    def digest(self) -> str | None:
        """The same on every rank, unless the script says otherwise."""
        return f"differs-{self._task.rank}" if self._fails("digest") else "fake"

    def peak_memory_bytes(self) -> int:
        """None of its own."""
        return 0

    def close(self) -> None:
        """Hang up."""
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
        )

    def _due(self, fault: str) -> bool:
        return self._fails(fault) and self._steps >= self._script["fail_step"]

    def _fail_if_due(self) -> None:
        if self._steps == self._script["fail_step"]:
            for fault, act in FAULTS.items():
                if self._fails(fault):
                    act(self._task)

    def fail_early(self) -> None:
        """The faults that come before `ready`."""
        for planted, act in EARLY_FAULTS.items():
            if self._fails(planted):
                act(self._task)


class StaleTrainer(FakeTrainer):
    """Its steps are as many behind as there are other ranks."""

    def staleness(self) -> float:
        """The others' steps between a pull and its push."""
        return self._task.point.world_size - 1.0


PLAIN_OPTIONS = OPTIONS


def make(
    task: Task, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> FakeTrainer:
    """The trainer of a task, on a clock that may be virtual."""
    exchanges = task.point.kind in EXCHANGING
    stale = exchanges and not traits(task.point.strategy).synchronous
    return (StaleTrainer if stale else FakeTrainer)(task, clock, sleep)


def scripted_step_s(task: Task, script: Mapping[str, Any]) -> float:
    """Seconds of one step of this rank without noise, by the formula of the module's docstring."""
    point = task.point
    alone = point.world_size == 1
    compute_s: float = script["step_s"] * (1.0 if alone else 1.0 + script["contention"])
    slowest_s = compute_s * (1.0 if alone else 1.0 + script["straggle"])
    match point.kind:
        case "solo":
            return float(script["step_s"])
        case "together":
            return slowest_s if task.rank == point.world_size - 1 else compute_s
        case "comm":
            return float(script["comm_s"])
        case _:
            exchange_s = 0.0 if alone else script["exchange_s"]
            return slowest_s + float(exchange_s) + float(script["overhead_s"])


# ---------------------------------------------------------------- the seam


def traits(name: str) -> Traits:
    """As the words of the mode say."""
    words = name.partition(":")[2].split("-")
    return Traits(
        drives="node" if "node" in words else "point" if "point" in words else "device",
        ports=1,
        rank_ports="ports" in words,
        servers="ps" in words,
        synchronous="async" not in words,
    )


def refuse(_point: Point) -> str | None:
    """It can do anything: it does nothing."""
    return None


def prepare() -> None:
    """There is nothing to import."""


def devices(_name: str) -> tuple[Device, ...]:
    """Any: it only sleeps."""
    return ("cpu", "cuda")


def missing(_name: str) -> str | None:
    """It needs nothing."""
    return None


def helpers(task: Task) -> list[Helper]:
    """A server for each that was placed, and one on rank 0 where the script asks for it."""
    placed = [Helper(name=f"server-{index}", server=index) for index in range(len(task.servers))]
    asked = read_options(OPTIONS, task.point.options)["helper"]
    return [Helper(name="server"), *placed] if asked else placed


def environ(task: Task, announced: Mapping[str, str]) -> dict[str, str]:
    """The ports that were reserved, and where the servers are."""
    return {
        "FAKE_PORT": ",".join(map(str, task.ports)),
        "FAKE_RANK_PORTS": ",".join(map(str, task.rank_ports)),
        **{f"FAKE_{key}": value for key, value in announced.items()},
    }


def connect(task: Task) -> Trainer:
    """Check the server, connect for traffic, sleep for `start_s`, be ready."""
    script = read_options(OPTIONS, task.point.options)
    trainer = make(task)
    trainer.fail_early()
    if script["helper"] and task.point.kind == "exchange":
        host, _, port = os.environ["FAKE_SERVER"].rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()
    if script["traffic_bytes"] and task.point.kind in EXCHANGING and task.point.world_size > 1:
        trainer.star = Star(task, script["traffic_bytes"])
    time.sleep(script["start_s"])
    return trainer


def serve(task: Task, announce: Callable[[dict[str, str]], None]) -> None:
    """Listen, announce the address, answer until the point ends."""
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
