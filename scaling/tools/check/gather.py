"""Facts of a rank's host beyond `hostinfo`: limits, shared memory, resolved names, load of other programs."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from heapq import nlargest
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

from scaling import frameworks
from scaling.agent import environment, strategies
from scaling.hosts import gpus, proc
from scaling.hosts.info import code_hash
from scaling.hosts.interfaces import has_card
from scaling.records.host import Interpreter
from scaling.tools.check.facts import Load, RankFacts

SHM = Path("/dev/shm")
RESOLVE_S = 2.0
WATCH_S = 0.4
NAMED = 3


def rank_facts(mpi: str) -> RankFacts:
    """Collect this rank's facts. Never raises; a fact that the host does not provide is None."""
    lacking, others = strategies.examine((*frameworks.NAMES, *frameworks.BASELINES))
    host = environment.host_with(others)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    size, free = shared_memory()
    return RankFacts(
        host=host,
        code=code_hash(),
        mpi=mpi,
        pid=os.getpid(),
        machine_cores=len(proc.physical_cores(range(os.cpu_count() or 1))),
        memlock_bytes=None if soft == resource.RLIM_INFINITY else soft,
        shm_bytes=size,
        shm_free_bytes=free,
        hardware=tuple(dict.fromkeys(nic.name for nic in host.nics if has_card(nic.name))),
        built_for_cuda=_built_for_cuda(others),
        driver=gpus.gather_health(),
        name_addresses=lacking.name_addresses,
    )


def _built_for_cuda(others: Iterable[Interpreter]) -> str | None:
    framework = frameworks.all_reducing()
    told = (one.cuda for one in others if one.framework == framework.name)
    return next(told, framework.built_for_cuda())


def shared_memory(path: Path = SHM) -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(path)
    except OSError:
        return None, None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def resolve(names: Iterable[str], within_s: float = RESOLVE_S) -> dict[str, tuple[str, ...]]:
    """Resolve each name to IPv4 addresses, empty if it has none or the answer takes too long."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())

    def ask(name: str) -> None:
        with suppress(OSError, UnicodeError):
            answers = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
            found[name] = tuple(dict.fromkeys(str(answer[4][0]) for answer in answers))

    # Daemon threads: an unreachable name server may take longer than the whole preflight.
    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in found]
    end_s = time.monotonic() + within_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    return dict(found)


def watch(mine: Collection[int], sleep: Callable[[float], None] = time.sleep) -> Load:
    before, start_s, busy_s = processes(), time.monotonic(), _busy_s()
    sleep(WATCH_S)
    passed_s, busy_s = time.monotonic() - start_s, _busy_s() - busy_s
    return load(before, processes(), mine, busy_s=busy_s, passed_s=passed_s)


def load(
    before: Mapping[int, tuple[str, float]],
    after: Mapping[int, tuple[str, float]],
    mine: Collection[int],
    *,
    busy_s: float,
    passed_s: float,
) -> Load:
    """Compute the load between two readings of all processes, {pid: (name, CPU seconds)}. `busy_s` includes
    processes outside this container."""
    used: dict[str, float] = {}
    own_s = 0.0
    for pid, (name, end_s) in after.items():
        spent_s = end_s - before.get(pid, (name, end_s))[1]
        if pid in mine:
            own_s += spent_s
        elif spent_s > 0:
            used[name] = used.get(name, 0.0) + spent_s
    return Load(
        other_cores=max(0.0, busy_s - own_s) / passed_s,
        by=tuple((name, used[name] / passed_s) for name in nlargest(NAMED, used, key=used.__getitem__)),
    )


def processes() -> dict[int, tuple[str, float]]:
    found = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None:
            found[process.pid] = (process.info["name"] or "?", times.user + times.system)
    return found


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)
