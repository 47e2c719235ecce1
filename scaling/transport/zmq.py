"""The ranks of a launch without MPI, over ZeroMQ; the only file that imports zmq.

Rank 0 binds a ROUTER, every other rank connects a DEALER. CURVE encrypts and authenticates: rank 0's key pair
follows from the launch's secret. Without the secret nobody knows the public key, so no handshake ends, and no
frame of a stranger is read. Frames are small, because ZeroMQ allocates one as soon as its size is announced.
Once all ranks have come, no new connection is accepted.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EADDRNOTAVAIL
from ipaddress import ip_address
from math import inf
from typing import Any

import msgspec
import zmq
from zmq.utils import z85

from scaling import __version__
from scaling.command import complain
from scaling.errors import Interrupted, LaunchError, SilentRanks
from scaling.records.run import ZEROMQ
from scaling.text import ranges, signal_name
from scaling.transport.base import SILENT_S, Box
from scaling.transport.start import LOOPBACK, Secret, Start

# How long ranks may differ in their start.
JOIN_S = 120.0
# After this time rank 0 names the missing ranks, and another rank says why it does not find rank 0.
QUIET_S = 5.0
POLL_MS = 100
PING_S, FLUSH_S, LINGER_MS = 1.0, 5.0, 5_000
# The mailbox names a silent rank first: it may be stopped, and not lost.
HEARTBEAT_MS, DEAD_MS = 5_000, int(1.25e3 * SILENT_S)
# A message is sent in frames of PART_BYTES. A larger frame than MOST_BYTES ends its connection, and so does a
# handshake that takes longer.
PART_BYTES, MOST_BYTES, HANDSHAKE_MS = 1 << 16, 1 << 17, 10_000
# How long one address is tried, and how long a rank that ends early waits to tell the others.
TRY_S, GRACE_S = 5.0, 2.0
Early = Callable[[], int | None]
HELLO, WELCOME, REFUSED, PING, BYE, ABORT = b"H", b"W", b"N", b"P", b"B", b"X"
KIND: dict[Box, bytes] = {"agent": b"a", "sweep": b"s"}
BOX: dict[bytes, Box] = {kind: box for box, kind in KIND.items()}


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of a rank."""

    rank: int
    ranks: int
    version: str
    host: str
    command: str = ""


def connect(start: Start, secret: Secret, early: Early = lambda: None) -> ZmqCluster:
    """Join the launch. Raises LaunchError if a rank is missing, comes twice, or is not like the others, and
    Interrupted for a signal. `early` returns the signal that this process got."""
    context = zmq.Context()
    try:
        return (_lead if start.rank == 0 else _follow)(context, start, secret, early)
    except BaseException:
        context.destroy(linger=LINGER_MS)
        raise


def keys(key: bytes) -> tuple[bytes, bytes]:
    """Return rank 0's public and secret key (Z85)."""
    own = z85.encode(key)
    return zmq.curve_public(own), own


def _opened(context: Any, kind: int) -> Any:
    found = context.socket(kind)
    for option, value in (
        (zmq.SNDHWM, 0), (zmq.RCVHWM, 0), (zmq.LINGER, LINGER_MS), (zmq.MAXMSGSIZE, MOST_BYTES),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS), (zmq.HEARTBEAT_TIMEOUT, DEAD_MS), (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        (zmq.IPV6, 1),
    ):  # fmt: skip
        found.setsockopt(option, value)
    return found


# ---------------------------------------------------------------- rank 0


def _lead(context: Any, start: Start, secret: Secret, early: Early) -> ZmqCluster:
    router = _opened(context, zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.curve_server = True
    key = secret.made()
    router.curve_publickey, router.curve_secretkey = keys(key)
    with _listening(start) as listener, _files_kept():
        router.setsockopt(zmq.USE_FD, os.dup(listener.fileno()))
        router.bind(f"tcp://*:{start.port}")
        try:
            secret.show(key)
            peers = _enrolled(router, start, early)
        finally:
            secret.forget()
        _accept_no_more(listener)
    for identity in peers.values():
        router.send_multipart([identity, WELCOME])
    return ZmqCluster(context, router, start, peers)


def _listening(start: Start) -> socket.socket:
    """Listen on the coordinator's address; on all addresses if it is not one of this host (NAT), not known yet (a
    new pod's name), or another host's name for this one (Debian's 127.0.1.1)."""
    if start.listener is not None:
        return start.listener
    found = _addresses(start.host)
    if start.host not in LOOPBACK and all(ip_address(one.partition("%")[0]).is_loopback for one in found):
        found = found if start.host in found else []
    for address in (*found, ""):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            return socket.create_server((address, start.port), family=family, backlog=max(128, start.ranks))
        except OSError as error:
            if error.errno != EADDRNOTAVAIL or not address:
                where = f"{start.coordinator}: port {start.port} cannot be opened on {socket.gethostname()}"
                raise LaunchError(f"{where} ({error.strerror}); choose another: --coordinator HOST:PORT") from None
    raise AssertionError


def _addresses(host: str) -> list[str]:
    """Return the addresses of a host, each once; none while its name is unknown."""
    with suppress(OSError, UnicodeError):
        return list(
            dict.fromkeys(str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        )
    return []


@contextmanager
def _files_kept() -> Iterator[None]:
    """Leave half of the files that this process may open to the run: strangers can take the others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, hard) if soft > 0 else (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


SO_ATTACH_FILTER, DROP = 26, struct.pack("HBBI", 6, 0, 0, 0)  # BPF: return 0 bytes of each packet


def _accept_no_more(listener: socket.socket) -> None:
    """Drop the packets of new connections. ZeroMQ's unbind would end those that it has."""
    code = ctypes.create_string_buffer(DROP, len(DROP))
    with suppress(OSError):  # gVisor has no filters
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(code)))


def _enrolled(router: Any, start: Start, early: Early) -> dict[int, bytes]:
    """Wait for the first message of each other rank, and name the missing ranks once; return the identities by
    rank. Raises LaunchError after JOIN_S."""
    peers: dict[int, bytes] = {}
    hosts: dict[int, str] = {}
    begun_s, is_told = time.monotonic(), False
    while len(peers) < start.ranks - 1:
        if number := early():
            _end_early(router, start, peers, number)
        passed_s = time.monotonic() - begun_s
        if passed_s > JOIN_S:
            raise LaunchError(
                f"ranks {_missing(start, peers)} of {start.ranks} did not come to {start.coordinator} within "
                f"{JOIN_S:g} s; start each with the same --ranks, --coordinator and secret"
            )
        if passed_s >= QUIET_S and not is_told:
            where = f"waiting at {start.coordinator} for ranks {_missing(start, peers)}"
            sys.stderr.write(f"scaling: {where}, up to {JOIN_S:g} s\n")
            is_told = True
        if not router.poll(POLL_MS):
            continue
        identity, kind, *body = router.recv_multipart()
        if kind == ABORT and body:
            _end_early(router, start, peers, int(body[0]))
        if kind != HELLO or not body:
            continue
        if why := _unlike(body[0], start, hosts):
            _refuse(router, [identity, *peers.values()], why)
            raise LaunchError(why)
        hello = msgspec.msgpack.decode(body[0], type=Hello)
        peers[hello.rank], hosts[hello.rank] = identity, hello.host
    return peers


def _end_early(router: Any, start: Start, peers: dict[int, bytes], number: int) -> None:
    """End the ranks that have come, and for a moment those that come. Raises Interrupted."""
    missing = _missing(start, peers)
    where = f"ranks {missing} of {start.ranks} were missing at {start.coordinator}"
    complain(f"ended while {where}", "scaling", signal_name(number))
    identities, end_s = list(peers.values()), time.monotonic() + GRACE_S
    while time.monotonic() < end_s:
        for identity in identities:
            with suppress(OSError):
                router.send_multipart([identity, ABORT, str(number).encode()])
        identities = [router.recv_multipart()[0]] if router.poll(POLL_MS) else []
    raise Interrupted(number)


def _missing(start: Start, peers: Container[int]) -> str:
    return ranges([rank for rank in range(1, start.ranks) if rank not in peers])


def _unlike(said: bytes, start: Start, hosts: dict[int, str]) -> str:
    """Return why a rank cannot join by its first message, or ""."""
    try:
        hello = msgspec.msgpack.decode(said, type=Hello)
    except msgspec.MsgspecError:
        return (
            f"a rank has another version of scaling than rank 0, which has {__version__}; install one on all nodes"
        )
    named = f"rank {hello.rank} on {hello.host}"
    if hello.version != __version__:
        return f"{named} has scaling {hello.version}, rank 0 has {__version__}; install the same on every node"
    if hello.ranks != start.ranks:
        return f"{named} was started with --ranks {hello.ranks}, rank 0 with {start.ranks}; give all the same"
    if hello.command != start.command:
        return f"{named} runs {hello.command}, rank 0 runs {start.command}; start the same command on all"
    if hello.rank in hosts or not 0 < hello.rank < start.ranks:
        before = hosts.get(hello.rank, "as rank 0" if hello.rank == 0 else f"of only {start.ranks} ranks")
        return f"{named} came twice, before from {before}; give each rank its own --rank"
    return ""


def _refuse(router: Any, identities: Sequence[bytes], why: str) -> None:
    for identity in identities:
        with suppress(OSError):
            router.send_multipart([identity, REFUSED, why.encode()])


# ---------------------------------------------------------------- other ranks


def _follow(context: Any, start: Start, secret: Secret, early: Early) -> ZmqCluster:
    """Connect to rank 0, at each address of its name in turn. A secret of an earlier launch may lie in the file,
    and a pod's name may come late: both are read again for each try."""
    wait, number, host = _Search(start, early), 0, socket.gethostname()
    hello = Hello(rank=start.rank, ranks=start.ranks, version=__version__, host=host, command=start.command)
    while wait.goes_on():
        addresses, key = _addresses(start.host), secret.read()
        if not addresses or key is None:
            own = f"{host} cannot resolve {start.host}; give its address: --coordinator ADDRESS:PORT"
            wait.tell(secret.missing if addresses else own)
            time.sleep(POLL_MS / 1e3)
            continue
        dealer = _opened(context, zmq.DEALER)
        dealer.curve_serverkey = keys(key)[0]
        dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        watch = dealer.get_monitor_socket(zmq.EVENT_ALL)
        address = addresses[number % len(addresses)]
        dealer.connect(f"tcp://{f'[{address}]' if ':' in address else address}:{start.port}")
        dealer.send_multipart([HELLO, msgspec.msgpack.encode(hello)])
        answer, why = _answered(dealer, watch, wait)
        if answer == WELCOME:
            return ZmqCluster(context, dealer, start, {}, watch)
        if answer == ABORT:
            raise Interrupted(int(why))
        if answer == REFUSED:
            raise LaunchError(why)
        wait.tell(why)
        dealer.disable_monitor()
        dealer.close(linger=0)
        number += 1
    raise wait.failure()


class _Search:
    """Another rank's search for rank 0: it says once why that takes long, fails after JOIN_S, and ends GRACE_S
    after a signal."""

    def __init__(self, start: Start, early: Early) -> None:
        self._start, self._why = start, ""
        self._early = early
        self.signal: int | None = None
        self._tell_s, self._end_s = time.monotonic() + QUIET_S, time.monotonic() + JOIN_S

    def goes_on(self) -> bool:
        now_s = time.monotonic()
        if self.signal is None and (number := self._early()):
            self.signal, self._end_s = number, min(self._end_s, now_s + GRACE_S)
        return now_s < self._end_s

    def tell(self, why: str) -> None:
        self._why = why
        if time.monotonic() > self._tell_s:
            place = f"scaling: rank {self._start.rank} waits for rank 0, up to {JOIN_S:g} s"
            sys.stderr.write(f"{place}: {why}\n")
            self._tell_s = inf

    def failure(self) -> Exception:
        """Return Interrupted after a signal, else LaunchError."""
        rank, place = f"rank {self._start.rank}", self._start.coordinator
        if self.signal is not None:
            complain(
                f"{rank} ended before it found rank 0 at {place}: {self._why or UNREACHABLE}",
                "scaling",
                signal_name(self.signal),
            )
            return Interrupted(self.signal)
        return LaunchError(f"{rank} found no rank 0 at {place} within {JOIN_S:g} s: {self._why}")


def _answered(dealer: Any, watch: Any, wait: _Search) -> tuple[bytes, str]:
    """Wait for rank 0's answer. Returns it with its reason, or b"" once this try has failed.

    A refusal may be followed at once by rank 0's end: what came before a disconnection is read after it.
    """
    failed = {zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
              zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_DISCONNECTED}  # fmt: skip
    reached = admitted = told = False
    end_s = time.monotonic() + TRY_S
    while True:
        events = set(_events(watch))
        reached = reached or zmq.EVENT_CONNECTED in events
        admitted = admitted or zmq.EVENT_HANDSHAKE_SUCCEEDED in events
        if not wait.goes_on() or (not reached and time.monotonic() > end_s):
            break
        if wait.signal is not None and not told:
            told = True
            dealer.send_multipart([ABORT, str(wait.signal).encode()])
        if dealer.poll(POLL_MS):
            kind, *body = dealer.recv_multipart()
            if kind in (WELCOME, REFUSED, ABORT):
                return kind, body[0].decode() if body else ""
        elif admitted and events & failed:
            return b"", "it has ended"
        elif reached and events & failed:
            return b"", OTHER_SECRET
    return b"", "not all ranks have come to it" if admitted else OTHER_SECRET if reached else UNREACHABLE


UNREACHABLE = "it is not reachable: is rank 0 running, and the port open?"
OTHER_SECRET = (
    "it has another secret, or is no rank 0 of scaling: give all ranks one SCALING_SECRET and the same "
    "--coordinator"
)


def _events(watch: Any) -> Iterator[int]:
    from zmq.utils.monitor import parse_monitor_message  # imports asyncio, which rank 0 does not need

    while watch.poll(0):
        yield parse_monitor_message(watch.recv_multipart(zmq.NOBLOCK))["event"]


# ---------------------------------------------------------------- cluster


def parts(message: bytes) -> list[bytes]:
    """Cut a message into frames."""
    return [message[place : place + PART_BYTES] for place in range(0, len(message), PART_BYTES)]


class ZmqCluster:
    """A `Cluster` over ZeroMQ. Other ranks only talk with rank 0, as all commands do."""

    def __init__(
        self, context: Any, connected: Any, start: Start, peers: dict[int, bytes], watch: Any = None
    ) -> None:
        self._context, self._socket, self._watch = context, connected, watch
        self._coordinator = start.coordinator
        self._peers = peers
        self._ranks = {identity: rank for rank, identity in peers.items()}
        self._left: set[int] = set()
        self._queues: dict[Box, deque[tuple[int, bytes]]] = {"agent": deque(), "sweep": deque()}
        self._ping_s = 0.0
        self.rank, self.size = start.rank, start.ranks
        self.library, self.said = f"{ZEROMQ} {zmq.zmq_version()}", start.said

    def send(self, rank: int, box: Box, message: bytes) -> None:
        if rank == self.rank:
            self._queues[box].append((rank, message))
        else:
            self._send(rank, KIND[box], message)

    def _send(self, rank: int, kind: bytes, message: bytes = b"") -> bool:
        """Return whether the rank is still connected; a rank other than 0 sends to rank 0 alone."""
        to = [self._peers[rank]] if self.rank == 0 else []
        try:
            self._socket.send_multipart([*to, kind, *parts(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def receive(self, box: Box) -> tuple[int, bytes] | None:
        self._drain()
        self._look()
        queue = self._queues[box]
        return queue.popleft() if queue else None

    def _drain(self) -> None:
        while self._socket.poll(0):
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
            rank = self._ranks.get(frames[0], -1) if self.rank == 0 else 0
            kind, *body = frames[1:] if self.rank == 0 else frames
            self._take(rank, kind, b"".join(body), frames[0])

    def _take(self, rank: int, kind: bytes, body: bytes, identity: bytes) -> None:
        if rank < 0:  # a rank that came once more at the start
            _refuse(self._socket, [identity], "this launch has all its ranks: give each rank its own --rank")
        elif kind in BOX:
            self._queues[BOX[kind]].append((rank, body))
        elif kind == BYE:
            self._left.add(rank)
        elif kind == ABORT:  # rank 0 ends as by a launcher's SIGTERM, with its answer so far; others at once
            self._left.add(rank)
            if self.rank:
                os._exit(int(body))
            os.kill(os.getpid(), signal.SIGTERM)

    def _look(self) -> None:
        """Raise SilentRanks on rank 0 if a rank has gone; end this rank if rank 0 has."""
        if self._watch is not None:
            if zmq.EVENT_DISCONNECTED in list(_events(self._watch)) and not self._left:
                complain(f"rank {self.rank}: rank 0 at {self._coordinator} has ended", "scaling")
                os._exit(1)
            return
        now_s = time.monotonic()
        if now_s - self._ping_s < PING_S:
            return
        self._ping_s = now_s
        gone = [rank for rank in self._peers if rank not in self._left and not self._send(rank, PING)]
        self._left.update(gone)
        if gone:
            named = ", ".join(f"rank {rank}" for rank in gone)
            raise SilentRanks(f"{named} ended, or its node or network is lost", gone, "lost")

    def close(self) -> None:
        others = set(self._peers) if self.rank == 0 else {0}
        if self.rank:
            self._send(0, BYE)
        end_s = time.monotonic() + FLUSH_S
        while not others <= self._left and time.monotonic() < end_s:
            self._drain()
            time.sleep(0.002)
        if self.rank == 0:
            for rank in self._peers:
                self._send(rank, BYE)
        self._context.destroy(linger=LINGER_MS)

    def abort(self, code: int) -> None:
        for rank in self._peers if self.rank == 0 else (0,):
            self._send(rank, ABORT, str(code).encode())
        self._context.destroy(linger=LINGER_MS)
        os._exit(code)
