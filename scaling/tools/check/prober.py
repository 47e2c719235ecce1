"""Every rank's part of the preflight: report the host, then obey rank 0 until released.

Threads measure and `turn` forwards their answers. So nothing blocks in MPI, and only the main thread calls MPI.
"""

from __future__ import annotations

import fcntl
import math
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from heapq import nlargest
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import IO, NamedTuple

import msgspec
import psutil  # type: ignore[import-untyped, unused-ignore]
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent import environment, strategies
from scaling.agent.environment import child_environ, granted
from scaling.errors import ScalingError
from scaling.frameworks import network_env
from scaling.hosts import gpus, proc
from scaling.hosts.info import code_hash
from scaling.records.messages import Signalled
from scaling.records.network import Place
from scaling.records.task import AskedDeviceRates
from scaling.text import one_line, signal_name
from scaling.tools.check.facts import (
    RANK_DECODER,
    EndProcess,
    Go,
    Leave,
    Left,
    Link,
    Load,
    Measure,
    Prepare,
    Prepared,
    RankFacts,
    Start,
    Told,
    ToLead,
    ToRank,
)
from scaling.transport.base import Cluster, send_news

# ---------------------------------------------------------------- the host
# Its limits, shared memory, resolved names, and the load of other programs.

FRAMEWORK = frameworks.of_preflight()
SHM = Path("/dev/shm")
RESOLVE_S = 2.0
WATCH_S = 0.4
NAMED = 3


def rank_facts(mpi: str) -> RankFacts:
    """Collect this rank's facts. Never raises; a fact that the host does not provide is None."""
    lacking, others = strategies.examine((*frameworks.NAMES, *frameworks.BASELINES))
    host = environment.host_with(others)
    elsewhere = (one.cuda for one in others if one.framework == FRAMEWORK.name)
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
        built_for_cuda=next(elsewhere, FRAMEWORK.built_for_cuda()),
        driver=gpus.gather_health(),
        name_addresses=lacking.name_addresses,
    )


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


class CpuUse(NamedTuple):
    """CPU seconds so far: of the machine, also outside this container, and {pid: (name, seconds)}."""

    at_s: float
    busy_s: float
    processes: Mapping[int, tuple[str, float]]


def cpu_use() -> CpuUse:
    found = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        if (times := process.info["cpu_times"]) is not None:
            found[process.pid] = (process.info["name"] or "?", times.user + times.system)
    times = psutil.cpu_times()
    return CpuUse(time.monotonic(), times.user + times.nice + times.system + times.irq + times.softirq, found)


def watch(mine: Collection[int]) -> Load:
    before = cpu_use()
    time.sleep(WATCH_S)
    return load(before, cpu_use(), mine)


def load(before: CpuUse, after: CpuUse, mine: Collection[int]) -> Load:
    used: dict[str, float] = {}
    own_s, passed_s = 0.0, after.at_s - before.at_s
    for pid, (name, end_s) in after.processes.items():
        spent_s = end_s - before.processes.get(pid, (name, end_s))[1]
        if pid in mine:
            own_s += spent_s
        elif spent_s > 0:
            used[name] = used.get(name, 0.0) + spent_s
    return Load(
        other_cores=max(0.0, after.busy_s - before.busy_s - own_s) / passed_s,
        by=tuple((name, used[name] / passed_s) for name in nlargest(NAMED, used, key=used.__getitem__)),
    )


# ---------------------------------------------------------------- links
# Measures latency, clock offset and bandwidth of one pair over TCP, bound to one network's address and interface.
# Each measurement has its own connection, which begins with HELLO. The bytes in flight never exceed the bytes
# acknowledged so far plus FIRST_BYTES, nor what drains in HORIZON_S at the speed so far. So a slow link with large
# buffers takes no longer than a fast one.


Bind = Callable[[socket.socket, str], None]
Mark = tuple[float, int]  # (seconds, bytes received)

HELLO = struct.Struct("!16scd")  # token, what to measure, seconds
FLOAT = struct.Struct("!d")
PING, FORTH, BACK = b"p", b"f", b"b"

CHUNK_BYTES = 1 << 20
FIRST_BYTES = 1 << 16
MOST_BYTES = 1 << 30
HORIZON_S = 0.04
NAP_S = 0.001
CONNECT_S = 1.2
DRAIN_S = 1.5  # for bytes in flight at the end
IDLE_S = 5.0  # a silent peer counts as gone after this
LONGEST_S = 10.0
PINGS = 400
COLD_PINGS = 5


def bind_device(sock: socket.socket, interface: str) -> None:
    """Bind a socket to one interface. Raises OSError if it is missing. Without permission (Linux before 5.7)
    routes decide."""
    with suppress(PermissionError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())


class Listener:
    """Serves measurements at one place, each in a thread, until `close`."""

    def __init__(self, place: Place, token: bytes, bind: Bind = bind_device) -> None:
        self._token = token
        self._socket = socket.socket()
        try:
            bind(self._socket, place.interface)
            self._socket.bind((place.address, 0))
            self._socket.listen(64)
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread; close alone does not
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection, self._token), daemon=True).start()


def serve(connection: socket.socket, token: bytes) -> None:
    with connection, suppress(OSError):
        connection.settimeout(IDLE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        theirs, what, seconds = HELLO.unpack(exactly(connection, HELLO.size))
        if theirs != token or not 0 < seconds <= LONGEST_S:
            return
        if what == PING:
            while True:  # until the peer closes
                exactly(connection, FLOAT.size)
                connection.sendall(FLOAT.pack(time.time()))
        elif what == FORTH:
            connection.sendall(FLOAT.pack(drain(connection, seconds + DRAIN_S)))
        elif what == BACK:
            pump(connection, seconds)


def probe_link(order: Measure, bind: Bind = bind_device) -> Link:
    """Measure a link. Never raises OSError: missing values stay None and `error` holds the reason."""
    link = Link(network=order.network, client=order.client, server=order.server)
    end_s = time.monotonic() + order.limit_s
    try:
        with _connect(order, PING, order.latency_s, end_s, bind) as sock:
            latency_s, offset_s = ping(sock, order.latency_s)
        link = replace(link, latency_s=latency_s, offset_s=offset_s)
        with _connect(order, FORTH, order.bandwidth_s, end_s, bind) as sock:
            pump(sock, order.bandwidth_s)
            sock.settimeout(_left(end_s))
            (forth,) = FLOAT.unpack(exactly(sock, FLOAT.size))
        link = replace(link, forth_bits_per_s=_something(forth))
        with _connect(order, BACK, order.bandwidth_s, end_s, bind) as sock:
            back = drain(sock, min(order.bandwidth_s + DRAIN_S, _left(end_s)))
        return replace(link, back_bits_per_s=_something(back))
    except OSError as error:
        return replace(link, error=link_reason(error))


def link_reason(error: OSError) -> str:
    return "timed out" if isinstance(error, TimeoutError) else error.strerror or str(error)


def _connect(order: Measure, what: bytes, seconds: float, end_s: float, bind: Bind) -> socket.socket:
    sock = socket.socket()
    try:
        sock.settimeout(min(CONNECT_S, _left(end_s)))
        bind(sock, order.source.interface)
        sock.bind((order.source.address, 0))
        sock.connect((order.address, order.port))
        sock.settimeout(_left(end_s))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(HELLO.pack(order.token, what, seconds))
    except OSError:
        sock.close()
        raise
    return sock


def _something(bits_per_s: float) -> float:
    if not bits_per_s:
        raise ConnectionError("no data arrived")
    return bits_per_s


def _left(end_s: float) -> float:
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def ping(sock: socket.socket, seconds: float) -> tuple[float, float]:
    """Bounce small messages for `seconds`. Return half the median round trip, and how far the peer's wall clock is
    ahead (fastest round trip, as in NTP)."""
    trips: list[tuple[float, float]] = []
    end_s = time.perf_counter() + seconds
    while len(trips) <= COLD_PINGS or (len(trips) < PINGS and time.perf_counter() < end_s):
        unix_s, start_s = time.time(), time.perf_counter()
        sock.sendall(FLOAT.pack(start_s))
        (theirs_unix_s,) = FLOAT.unpack(exactly(sock, FLOAT.size))
        trip_s = time.perf_counter() - start_s
        trips.append((trip_s, theirs_unix_s - unix_s - trip_s / 2))
    warm = trips[COLD_PINGS:]
    return median(trip_s for trip_s, _ in warm) / 2, min(warm)[1]


def pump(sock: socket.socket, seconds: float) -> None:
    sock.setblocking(False)
    ready = select.poll()
    ready.register(sock, select.POLLOUT)
    start_s = time.monotonic()
    sent = 0
    while (passed_s := time.monotonic() - start_s) < seconds and sent < MOST_BYTES:
        answer: bytes = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        waiting = int.from_bytes(answer, sys.byteorder)  # sent but not acknowledged
        room = window_bytes(sent - waiting, passed_s) - waiting
        if room <= 0:
            time.sleep(NAP_S)
            continue
        try:
            sent += sock.send(_noise()[:room])
        except BlockingIOError:
            ready.poll(1000 * (seconds - passed_s))
    sock.shutdown(socket.SHUT_WR)


def window_bytes(acknowledged: int, passed_s: float) -> int:
    drained = acknowledged / passed_s * HORIZON_S if passed_s > 0 else 0.0
    return max(FIRST_BYTES, int(min(acknowledged + FIRST_BYTES, drained)))


@cache
def _noise() -> memoryview:
    return memoryview(os.urandom(CHUNK_BYTES))


def drain(sock: socket.socket, within_s: float) -> float:
    """Receive until the peer ends or `within_s` is over; return bits/s."""
    buffer = memoryview(bytearray(CHUNK_BYTES))
    marks: list[Mark] = [(time.monotonic(), 0)]
    total, end_s = 0, marks[0][0] + within_s
    with suppress(TimeoutError):
        while True:
            sock.settimeout(_left(end_s))
            got = sock.recv_into(buffer)
            if not got:
                return rate_bits_per_s(marks)
            total += got
            marks.append((time.monotonic(), total))
    return rate_bits_per_s([*marks, (time.monotonic(), total)])


def rate_bits_per_s(marks: Sequence[Mark]) -> float:
    """Compute bits/s without the first quarter, when TCP grows its window and shapers spend their burst. 0 if
    nothing came."""
    (start_s, _), (end_s, total) = marks[0], marks[-1]
    at_s, before = marks[bisect_right(marks, start_s + (end_s - start_s) / 4, key=lambda mark: mark[0]) - 1]
    return 8 * (total - before) / (end_s - at_s) if end_s > at_s else 0.0


def exactly(sock: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes. Raises ConnectionError if the peer closes earlier."""
    found = b""
    while len(found) < size:
        more = sock.recv(size - len(found))
        if not more:
            raise ConnectionError("the other side closed the connection")
        found += more
    return found


# ---------------------------------------------------------------- prober

QUICK_S = 0.002
CALM_S = 0.02


class Prober:
    """One rank of the preflight. `signals` receives each signal that asks for the end. Tests replace `bind`."""

    def __init__(self, cluster: Cluster, *, signals: list[int] | None = None, bind: Bind = bind_device) -> None:
        self.cluster = cluster
        self.left, self.exit_code = False, 0
        self._answers_leaving = False
        self._bind = bind
        self._listeners: list[Listener] = []
        self._processes = Processes()
        self._answers: SimpleQueue[ToLead | BaseException] = SimpleQueue()
        self._measuring: list[threading.Thread] = []
        self._signals = [] if signals is None else signals

    def serve(self) -> None:
        while not self.left:
            self.turn()
            self.wait()
        if self._answers_leaving:
            self.say(Left())
            while self.cluster.receive("agent") is None:  # rank 0 waits for other ranks' answers
                self.wait()

    def turn(self) -> None:
        """Take all orders and forward all answers without blocking. Raises what a measuring thread raised."""
        while self._signals:
            self.say(Signalled(signal=self._signals.pop(0)))
        while (message := self.cluster.receive("agent")) is not None:
            self._obey(RANK_DECODER.decode(message[1]))
        while not self._answers.empty():
            answer = self._answers.get()
            if isinstance(answer, BaseException):
                raise answer
            self.say(answer)

    def wait(self) -> None:
        """Sleep, because MPI has no file descriptor to wait on."""
        self._measuring = [thread for thread in self._measuring if thread.is_alive()]
        time.sleep(QUICK_S if self._measuring else CALM_S)

    def say(self, message: ToLead) -> None:
        send_news(self.cluster, message)

    def _obey(self, order: ToRank) -> None:
        match order:
            case Prepare():
                self._apart(lambda: self._prepare(order))
            case Measure():
                self._apart(lambda: probe_link(order, self._bind))
            case Start():
                calm = isinstance(order.asked, AskedDeviceRates)
                self._apart(lambda: self._processes.answer(order, self._answers.put), calm=calm)
            case Go():
                self._processes.go.set()
            case EndProcess():
                self._processes.end(order.number)
            case Leave():
                self.leave(order)

    def leave(self, order: Leave) -> None:
        self.left, self.exit_code, self._answers_leaving = True, order.exit_code, order.answer
        self._processes.end(FOR_GOOD)
        for listener in self._listeners:
            listener.close()

    def _apart(self, work: Callable[[], ToLead], *, calm: bool = False) -> None:
        """Do `work` in a thread. A later turn forwards its answer or raises its exception. `calm`: this process
        must not wake often meanwhile."""

        def run() -> None:
            try:
                self._answers.put(work())
            except BaseException as error:
                self._answers.put(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        if not calm:
            self._measuring.append(thread)

    def _prepare(self, order: Prepare) -> Prepared:
        ports: dict[str, int] = {}
        refused: dict[str, str] = {}
        for word, place in order.places.items():
            try:
                listener = Listener(place, order.token, self._bind)
            except OSError as error:
                refused[word] = link_reason(error)
            else:
                self._listeners.append(listener)
                ports[word] = listener.port
        load = watch(frozenset(order.mine))
        return Prepared(ports=ports, refused=refused, resolved=resolve(order.names), load=load)


# ---------------------------------------------------------------- processes
#
# One rank's processes that measure by a framework: timed all-reduces, and the rates of its device.


PROCESS = FRAMEWORK.preflight
TAIL_BYTES = 4000
KILLED_S = 5.0  # a process that a driver holds survives SIGKILL
FOR_GOOD = math.inf


class Processes:
    """Runs one rank's processes, one at a time, with increasing numbers."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._lock = threading.Lock()
        self.go = threading.Event()  # lets the process of a device's rates measure
        self._process: subprocess.Popen[bytes] | None = None
        self._over: float = -1

    def answer(self, order: Start, built: Callable[[Told], None]) -> Told:
        """Start a process and block until it answers or dies. It lives until `end`. A process of device rates
        first answers that it is built, which goes to `built`; it measures after `go`."""
        number, asked = order.number, order.asked
        self.go.clear()
        try:
            with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory(prefix="scaling-check-") as folder:
                # NCCL writes its choices to a file next to this path.
                asked = replace(asked, task=replace(asked.task, log=f"{folder}/all-reduce"))
                own = granted(self._environ, strategies.environ(asked.task), asked.task.point.interconnect)
                environ = child_environ(self._environ, asked.task, own)
                process = self._start(order, environ, log)
                line, error = _answer(process, msgspec.json.encode(asked), log)
                if isinstance(asked, AskedDeviceRates) and not error:
                    built(Told(number=number, line=line))
                    self.go.wait()
                    line, error = _answer(process, b"", log)
                nccl = network_env.read_nccl_log(environ.get("NCCL_DEBUG_FILE", ""), process.pid)
                return Told(number=number, line=line, error=error, nccl=nccl)
        except (OSError, ScalingError, ValueError) as failed:  # ValueError: `end` has closed a pipe
            return Told(number=number, error=one_line(str(failed)))

    def _start(self, order: Start, environ: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        with self._lock:
            if order.number <= self._over:
                raise InterruptedError("cancelled before it started")
            self._process = subprocess.Popen(
                [environment.python_of(FRAMEWORK.name, self._environ), "-m", PROCESS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environ,
                start_new_session=True,
            )
            return self._process

    def end(self, number: float) -> None:
        """End the process. No process with this number or a lower one is started afterwards."""
        with self._lock:
            self._over = max(self._over, number)
            process, self._process = self._process, None
        if process is not None:
            _kill(process)
        self.go.set()


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            return  # a thread still reads its pipes, and closing them would wait for it
    for pipe in filter(None, (process.stdin, process.stdout)):
        with suppress(BrokenPipeError):
            pipe.close()


def _answer(process: subprocess.Popen[bytes], request: bytes, log: IO[bytes]) -> tuple[bytes, str]:
    """Return the process's next line, or why there is none."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(request + b"\n")
        process.stdin.flush()
    line = process.stdout.readline()
    return (line, "") if line.endswith(b"\n") else (b"", _cause(process.wait(), log))


def _cause(code: int, log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    ended = f"ended by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
    return f"{ended}: {one_line(lines[-1])}" if lines else ended
