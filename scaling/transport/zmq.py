"""The ranks of a launch without MPI, over ZeroMQ; the only file that imports zmq.

Rank 0 binds a ROUTER, every other rank connects a DEALER. CURVE encrypts and authenticates: rank 0's key pair
follows from the launch's secret. Without the secret nobody knows the public key, so no handshake ends, and no
frame of a stranger is read.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from math import inf
from typing import Any

import msgspec

from scaling import __version__
from scaling.command import complain
from scaling.errors import LaunchError, SilentRanks
from scaling.records.run import ZEROMQ
from scaling.transport.base import SILENT_S, Box
from scaling.transport.start import Secret, Start

# How long ranks may differ in their start.
JOIN_S = 120.0
# After this time rank 0 names the missing ranks, and another rank says why it does not find rank 0.
QUIET_S = 5.0
POLL_MS = 100
PING_S, FLUSH_S, LINGER_MS = 1.0, 5.0, 5_000
# A rank is lost when the mailbox would call it silent.
HEARTBEAT_MS, DEAD_MS = 5_000, int(1e3 * SILENT_S)
# A larger frame ends its connection.
MOST_BYTES = 1 << 30
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


def connect(start: Start, secret: Secret) -> ZmqCluster:
    """Join the launch. Raises LaunchError if a rank is missing, comes twice, or is not like the others."""
    try:
        import zmq
    except ImportError:
        raise LaunchError("without MPI ranks talk over pyzmq, which is not installed: pip install pyzmq") from None
    context = zmq.Context()
    try:
        return _lead(zmq, context, start, secret) if start.rank == 0 else _follow(zmq, context, start, secret)
    except BaseException:
        context.destroy(linger=LINGER_MS)
        raise


def keys(secret: str) -> tuple[bytes, bytes]:
    """Return rank 0's public and secret key (Z85) for the launch's secret."""
    import zmq
    from zmq.utils import z85

    own = z85.encode(blake2b(secret.encode(), digest_size=32, person=b"scaling zmq").digest())
    return zmq.curve_public(own), own


def _opened(zmq: Any, context: Any, kind: int) -> Any:
    found = context.socket(kind)
    for option, value in (
        (zmq.SNDHWM, 0), (zmq.RCVHWM, 0), (zmq.LINGER, LINGER_MS), (zmq.MAXMSGSIZE, MOST_BYTES),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS), (zmq.HEARTBEAT_TIMEOUT, DEAD_MS), (zmq.IPV6, 0),
    ):  # fmt: skip
        found.setsockopt(option, value)
    return found


# ---------------------------------------------------------------- rank 0


def _lead(zmq: Any, context: Any, start: Start, secret: Secret) -> ZmqCluster:
    router = _opened(zmq, context, zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.curve_server = True
    router.curve_publickey, router.curve_secretkey = keys(secret.made())
    try:
        router.bind(f"tcp://*:{start.port}")
    except zmq.ZMQError as error:
        where = f"{start.coordinator}: port {start.port} cannot be opened on {socket.gethostname()}"
        raise LaunchError(f"{where} ({error.strerror}); choose another: --coordinator HOST:PORT") from None
    try:
        peers = _enrolled(router, start)
    finally:
        secret.forget()
    for identity in peers.values():
        router.send_multipart([identity, WELCOME])
    return ZmqCluster(zmq, context, router, start, peers)


def _enrolled(router: Any, start: Start) -> dict[int, bytes]:
    """Wait for the first message of each other rank; return the identities by rank."""
    peers: dict[int, bytes] = {}
    hosts: dict[int, str] = {}
    waiting = _Waiting(start)
    while len(peers) < start.ranks - 1:
        waiting.look(peers)
        if not router.poll(POLL_MS):
            continue
        identity, kind, *body = router.recv_multipart()
        if kind != HELLO or not body:
            continue
        hello = msgspec.msgpack.decode(body[0], type=Hello)
        if why := _unlike(hello, start, hosts):
            _refuse(router, [identity, *peers.values()], why)
            raise LaunchError(why)
        peers[hello.rank], hosts[hello.rank] = identity, hello.host
    return peers


class _Waiting:
    """Rank 0's wait for the others: it names the missing ranks once, and fails after JOIN_S."""

    def __init__(self, start: Start) -> None:
        self._start, self._begun_s, self._is_told = start, time.monotonic(), False

    def look(self, peers: Container[int]) -> None:
        """Raise LaunchError after JOIN_S."""
        passed_s, start = time.monotonic() - self._begun_s, self._start
        if passed_s < QUIET_S or (self._is_told and passed_s < JOIN_S):
            return
        missing = " ".join(str(rank) for rank in range(1, start.ranks) if rank not in peers)
        if passed_s > JOIN_S:
            raise LaunchError(
                f"ranks {missing} of {start.ranks} did not come to {start.coordinator} within {JOIN_S:g} s; "
                "start each with the same --ranks, --coordinator and secret"
            )
        sys.stderr.write(f"scaling: waiting at {start.coordinator} for ranks {missing}, up to {JOIN_S:g} s\n")
        self._is_told = True


def _unlike(hello: Hello, start: Start, hosts: dict[int, str]) -> str:
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


def _follow(zmq: Any, context: Any, start: Start, secret: Secret) -> ZmqCluster:
    """Connect to rank 0. A secret of an earlier launch may lie in the file, and a pod's name may come late: both
    are read again for each try."""
    tell_s, end_s = time.monotonic() + QUIET_S, time.monotonic() + JOIN_S
    why = "it is not reachable: is rank 0 running, and the port open?"
    while time.monotonic() < end_s:
        try:
            address, text = _known(start, secret)
        except LaunchError as missing:
            why = str(missing)
            if time.monotonic() > tell_s:
                sys.stderr.write(f"scaling: rank {start.rank} waits for rank 0, up to {JOIN_S:g} s: {why}\n")
                tell_s = inf
            time.sleep(POLL_MS / 1e3)
            continue
        dealer = _dealer(zmq, context, text)
        watch = dealer.get_monitor_socket(zmq.EVENT_ALL)
        dealer.connect(f"tcp://{address}:{start.port}")
        dealer.send_multipart([HELLO, msgspec.msgpack.encode(_hello(start))])
        answer, why = _answered(zmq, dealer, watch, end_s, why)
        if answer == WELCOME:
            return ZmqCluster(zmq, context, dealer, start, {}, watch)
        if answer == REFUSED:
            raise LaunchError(why)
        dealer.disable_monitor()
        dealer.close(linger=0)
    raise LaunchError(f"rank {start.rank} found no rank 0 at {start.coordinator} within {JOIN_S:g} s: {why}")


def _known(start: Start, secret: Secret) -> tuple[str, str]:
    """Return rank 0's address and the secret. Raises LaunchError while one of them is unknown."""
    try:
        address = socket.gethostbyname(start.host)
    except OSError as error:
        raise LaunchError(
            f"{socket.gethostname()} cannot resolve {start.host} ({error.strerror}); give its address: "
            "--coordinator ADDRESS:PORT"
        ) from None
    if (text := secret.read()) is None:
        raise LaunchError(secret.missing)
    return address, text


def _hello(start: Start) -> Hello:
    return Hello(
        rank=start.rank, ranks=start.ranks, version=__version__, host=socket.gethostname(), command=start.command
    )


def _dealer(zmq: Any, context: Any, secret: str) -> Any:
    dealer = _opened(zmq, context, zmq.DEALER)
    dealer.curve_serverkey = keys(secret)[0]
    dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
    return dealer


def _answered(zmq: Any, dealer: Any, watch: Any, end_s: float, why: str) -> tuple[bytes, str]:
    """Wait for rank 0's answer. Returns it with its reason, or b"" once the handshake failed.

    A refusal may be followed at once by rank 0's end: what came before a disconnection is read after it.
    """
    failed = {zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
              zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_DISCONNECTED}  # fmt: skip
    reached = admitted = False
    while time.monotonic() < end_s:
        events = set(_events(zmq, watch))
        reached = reached or zmq.EVENT_CONNECTED in events
        admitted = admitted or zmq.EVENT_HANDSHAKE_SUCCEEDED in events
        if dealer.poll(POLL_MS):
            kind, *body = dealer.recv_multipart()
            if kind in (WELCOME, REFUSED):
                return kind, body[0].decode() if body else ""
        elif reached and events & failed:
            return b"", "it has another secret, or is no rank 0 of scaling: set one SCALING_SECRET for all ranks"
    return b"", "not all ranks have come to it" if admitted else why


def _events(zmq: Any, watch: Any) -> Iterator[int]:
    from zmq.utils.monitor import parse_monitor_message

    while watch.poll(0):
        yield parse_monitor_message(watch.recv_multipart(zmq.NOBLOCK))["event"]


# ---------------------------------------------------------------- cluster


class ZmqCluster:
    """A `Cluster` over ZeroMQ. Other ranks only talk with rank 0, as all commands do."""

    def __init__(
        self, zmq: Any, context: Any, connected: Any, start: Start, peers: dict[int, bytes], watch: Any = None
    ) -> None:
        self._zmq, self._context, self._socket, self._watch = zmq, context, connected, watch
        self._coordinator = start.coordinator
        self._peers = peers
        self._ranks = {identity: rank for rank, identity in peers.items()}
        self._left: set[int] = set()
        self._queues: dict[Box, deque[tuple[int, bytes]]] = {"agent": deque(), "sweep": deque()}
        self._ping_s = 0.0
        self.rank, self.size = start.rank, start.ranks
        self.library = f"{ZEROMQ} {zmq.zmq_version()}"

    def send(self, rank: int, box: Box, message: bytes) -> None:
        if rank == self.rank:
            self._queues[box].append((rank, message))
        else:
            self._send(rank, KIND[box], message)

    def _send(self, rank: int, kind: bytes, message: bytes = b"") -> bool:
        """Return whether the rank is still connected; a rank other than 0 sends to rank 0 alone."""
        to = [self._peers[rank]] if self.rank == 0 else []
        try:
            self._socket.send_multipart([*to, kind, message], self._zmq.NOBLOCK)
        except self._zmq.ZMQError:
            return False
        return True

    def receive(self, box: Box) -> tuple[int, bytes] | None:
        self._drain()
        self._look()
        queue = self._queues[box]
        return queue.popleft() if queue else None

    def _drain(self) -> None:
        while self._socket.poll(0):
            frames = self._socket.recv_multipart(self._zmq.NOBLOCK)
            rank = self._ranks.get(frames[0], -1) if self.rank == 0 else 0
            kind, *body = frames[1:] if self.rank == 0 else frames
            self._take(rank, kind, body[0] if body else b"", frames[0])

    def _take(self, rank: int, kind: bytes, body: bytes, identity: bytes) -> None:
        if rank < 0:  # a rank that comes once more after the start
            _refuse(self._socket, [identity], "this launch has all its ranks: give each rank its own --rank")
        elif kind in BOX:
            self._queues[BOX[kind]].append((rank, body))
        elif kind == BYE:
            self._left.add(rank)
        elif kind == ABORT:
            self._aborted(rank, int(body))

    def _aborted(self, rank: int, code: int) -> None:
        """Rank 0 ends as by a launcher's SIGTERM, with its answer so far; others end at once."""
        self._left.add(rank)
        if self.rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            os._exit(code)

    def _look(self) -> None:
        """Raise SilentRanks on rank 0 if a rank has gone; end this rank if rank 0 has."""
        if self._watch is not None:
            if any(event == self._zmq.EVENT_DISCONNECTED for event in _events(self._zmq, self._watch)):
                self._end_without_rank_0()
            return
        now_s = time.monotonic()
        if now_s - self._ping_s < PING_S:
            return
        self._ping_s = now_s
        gone = [rank for rank in self._peers if rank not in self._left and not self._send(rank, PING)]
        self._left.update(gone)
        if gone:
            named = ", ".join(f"rank {rank}" for rank in gone)
            raise SilentRanks(f"{named} ended, or its node or network is lost", gone)

    def _end_without_rank_0(self) -> None:
        if not self._left:
            complain(f"rank {self.rank}: rank 0 at {self._coordinator} has ended", "scaling")
            os._exit(1)

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
