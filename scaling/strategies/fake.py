"""The scripted strategy: no framework, sleeps instead of training, moves real bytes and fails where told.

Any `fake:<mode>` is this module; its script comes by `--option`. With N ranks

    compute(rank) = step_s x (1 + contention) x (1 + straggle, on the last rank)     N > 1
    solo = step_s,  together = compute(rank),  comm = comm_s
    exchange = max over ranks of compute + exchange_s         (overhead_s more at every N)

each times its seeded noise, so that the right speedup, efficiency and loss by cause follow by hand.
Tests hand in a clock of their own; then nothing sleeps.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from scaling.records import Device
from scaling.strategies.base import Helper, Option, Trainer, read_options
from scaling.strategies.fake_traffic import Star
from scaling.tasks import Task

IN_LOOP = ("raise", "exit-0", "segfault", "kill", "oom", "print", "hang", "fork", "nan", "digest")
EARLY = ("hang-before-ready", "port", "port-always")


def fault(name: str) -> str:
    """A fault's name; ValueError for any other word."""
    if name and name not in IN_LOOP + EARLY:
        raise ValueError(name)
    return name


NAMES = ("fake:plain",)
BASELINE = "fake:plain"
PORTS = 1
SYNCHRONOUS = True
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
        if self._task.point.kind != "comm":
            self.samples += self._task.point.batch_size

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
        for fault, act in EARLY_FAULTS.items():
            if self._fails(fault):
                act(self._task)


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


# ---------------------------------------------------------------- faults


def _raise(task: Task) -> None:
    raise RuntimeError(f"scripted failure of rank {task.rank}")


def _exit_0(_: Task) -> None:
    os._exit(0)


def _segfault(_: Task) -> None:
    ctypes.string_at(0)


def _kill(_: Task) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _out_of_memory(_: Task) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytearray(2 << 30)


def _print(_: Task) -> None:
    for _line in range(5 * 1024):
        sys.stdout.write("x" * 1023 + "\n")


def _hang(_: Task) -> None:
    time.sleep(3600)


def _fork(_: Task) -> None:
    # One stays in the worker's group, the other makes a session of its own.
    subprocess.Popen(["sleep", "3600"])
    subprocess.Popen(["sleep", "3600"], start_new_session=True)


def _port(task: Task) -> None:
    if task.retry == 0:
        raise OSError(errno.EADDRINUSE, f"Address already in use: port {task.ports[0]}")


def _port_always(_: Task) -> None:
    raise OSError(errno.EADDRINUSE, "Address already in use")


FAULTS: dict[str, Callable[[Task], None]] = {
    "raise": _raise,
    "exit-0": _exit_0,
    "segfault": _segfault,
    "kill": _kill,
    "oom": _out_of_memory,
    "print": _print,
    "hang": _hang,
    "fork": _fork,
}
EARLY_FAULTS: dict[str, Callable[[Task], None]] = {
    "hang-before-ready": _hang,
    "port": _port,
    "port-always": _port_always,
}


# ---------------------------------------------------------------- the seam


def devices(_name: str) -> tuple[Device, ...]:
    """Any: it only sleeps."""
    return ("cpu", "cuda")


def missing(_name: str) -> str | None:
    """It needs nothing."""
    return None


def helpers(task: Task) -> list[Helper]:
    """A server on rank 0, where the script asks for one."""
    return [Helper(name="server")] if read_options(OPTIONS, task.point.options)["helper"] else []


def environ(task: Task, announced: Mapping[str, str]) -> dict[str, str]:
    """The port that was reserved, and where the server is."""
    return {"FAKE_PORT": ",".join(map(str, task.ports)), **{f"FAKE_{k}": v for k, v in announced.items()}}


def connect(task: Task) -> Trainer:
    """Check the server, connect for traffic, sleep for `start_s`, be ready."""
    script = read_options(OPTIONS, task.point.options)
    trainer = FakeTrainer(task)
    trainer.fail_early()
    if script["helper"] and task.point.kind == "exchange":
        host, _, port = os.environ["FAKE_SERVER"].rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()
    if script["traffic_bytes"] and task.point.kind in ("exchange", "comm") and task.point.world_size > 1:
        trainer.star = Star(task, script["traffic_bytes"])
    time.sleep(script["start_s"])
    return trainer


def serve(task: Task, announce: Callable[[dict[str, str]], None]) -> None:
    """Listen, announce the address, answer until the point ends."""
    with socket.create_server((task.address, 0)) as server:
        announce({"SERVER": f"{task.address}:{server.getsockname()[1]}"})
        while True:
            server.accept()[0].close()
