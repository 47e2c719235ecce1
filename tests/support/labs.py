"""Real labs for tests: made by root, found by a name of this process, seen to leave nothing."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from scaling.tools.lab import lifecycle, namespaces, remote, shapes, state, wires
from scaling.tools.lab.state import Lab, Program

ROOT = Path(__file__).resolve().parents[2]
NICS = ("ib0=500mbit", "eth0=100mbit")


def reason_against() -> str:
    """Why this machine makes no labs, "" where it does."""
    if os.geteuid() != 0:
        return "a lab needs root"
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x40020000))"  # network, mounts
    done = subprocess.run([sys.executable, "-S", "-c", code], check=False)
    return "no namespaces here: not privileged" if done.returncode else ""


REASON = reason_against()
needs_lab = pytest.mark.skipif(bool(REASON), reason=REASON or "it runs")


def make(word: str, *, nodes: int = 2, slots: int = 2, nics: tuple[str, ...] = NICS) -> Lab:
    """A lab that is up."""
    return remember(lifecycle.up(shapes.shape(name(word), nodes, slots, nics), lambda text: None))


def load(word: str) -> Lab:
    return remember(state.load(name(word)))


def end(word: str) -> bool:
    """Take it down whatever it does."""
    return lifecycle.down(name(word), force=True, say=lambda text: None)


@contextmanager
def lab(word: str, **fields: Any) -> Iterator[Lab]:
    """A lab for a while; asserts that nothing is left of it."""
    before = outside()
    one = make(word, **fields)
    try:
        yield one
    finally:
        end(word)
    assert traces(one) == []
    assert outside() <= before


def on(lab: Lab, node: str, *command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command on a node, by the remote agent."""
    return agent(lab, "--as-is", node, *command, cwd=cwd)


def agent(
    lab: Lab, *words: str, cwd: Path = ROOT, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [str(lab.folder / "agent"), *words]
    env = {**os.environ, **(environ or {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=60, env=env)


def python(lab: Lab, node: str, code: str, *arguments: str) -> str:
    """What Python code prints on a node; it may import this package."""
    done = on(lab, node, sys.executable, "-c", code, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def command(*arguments: str, timeout_s: float = 120, **fields: Any) -> subprocess.CompletedProcess[str]:
    """`python -m scaling lab ARGUMENT...` from the repository."""
    words = [sys.executable, "-m", "scaling", "lab", *arguments]
    return subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=ROOT, timeout=timeout_s, **fields
    )


def run(lab: Lab, ranks: int, *words: str, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
    """`lab run` of a program of Python on so many ranks."""
    return command("run", "--name", lab.name, "--", "-np", str(ranks), "python", *words, timeout_s=timeout_s)


@contextmanager
def unreachable(lab: Lab, node: str, card: str, address: str) -> Iterator[None]:
    """Packets of a node to an address have a wrong hardware address: no node takes them."""
    with wires.inside(lab, node) as ip:
        wrong = {"dst": address, "lladdr": "02:00:00:00:00:99", "ifindex": socket.if_nametoindex(card)}
        ip.neigh("replace", **wrong, state="permanent")
    try:
        yield
    finally:
        with wires.inside(lab, node) as ip:
            ip.neigh("del", **wrong)


def shaped_bits_per_s(lab: Lab, room: str, interface: str) -> float:
    """What the kernel says that one end of a link is shaped to."""
    with wires.inside(lab, room) as ip:
        (found,) = ip.get_qdiscs(index=socket.if_nametoindex(interface))
    assert found.get_attr("TCA_KIND") == "tbf"
    options = found.get_attr("TCA_OPTIONS")
    rate = options.get_attr("TCA_TBF_RATE64") or options.get_attr("TCA_TBF_PARMS")["rate"]
    return float(8 * rate)


def ends_bits_per_s(lab: Lab, node: str, card: str) -> tuple[float, float]:
    port = lab.port(node, lab.nic(card, card))
    return shaped_bits_per_s(lab, node, card), shaped_bits_per_s(lab, state.SWITCH, port)


SERVE = """
import socket, sys
with socket.create_server((sys.argv[1], 4000)) as server:
    print("up", flush=True)
    with server.accept()[0] as peer:
        print(sum(len(part) for part in iter(lambda: peer.recv(1 << 16), b"")))
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 4000), timeout=20) as peer:
    peer.sendall(bytes(int(sys.argv[2])))
"""


def send(lab: Lab, address: str, size: int) -> int:
    """Send so many bytes from node1 to an address of node2; how many came."""
    words = [str(lab.folder / "agent"), "--as-is", "node2", sys.executable, "-c", SERVE, address]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        python(lab, "node1", SEND, address, str(size))
        return int(server.stdout.read())


def sent_bytes(lab: Lab, node: str, card: str) -> int:
    """What a card's counter says, as the node itself reads it."""
    return int(on(lab, node, "cat", f"/sys/class/net/{card}/statistics/tx_bytes").stdout)


# ---------------------------------------------------------------- what a lab leaves behind


# Since Linux 5.14 (asm-generic/socket.h): the one name of a network namespace that is not given again.
SO_NETNS_COOKIE = 71
# Where a node has mounts of its own, which must not be seen outside.
PLACES = ("/tmp", "/dev/shm", "/etc/hosts", "/sys", "/sys/fs/cgroup")
CARDS = re.compile(r"n\d+c\d+|br\d+|ib\d+|eth\d+|a-long-card-name")
_cookies: dict[Program, frozenset[int]] = {}


def name(word: str) -> str:
    """Of a lab that nobody else makes."""
    return f"test{os.getpid()}-{word}"


def remember(lab: Lab) -> Lab:
    """The lab, whose namespaces will be known again; it must be up."""
    _cookies[lab.holder.program] = frozenset(map(cookie, _rooms(lab)))
    return lab


def _rooms(lab: Lab) -> Iterator[Path]:
    for kinds in lab.holder.namespaces.values():
        yield Path(f"/proc/{lab.holder.program.pid}/fd/{kinds['net']}")


def cookie(path: Path) -> int:
    """The kernel's own name of a network namespace."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with namespaces.network(descriptor), socket.socket() as inside:
            return int.from_bytes(inside.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8), sys.byteorder)
    finally:
        os.close(descriptor)


def traces(lab: Lab) -> list[str]:
    """What is left of a lab that was up: files, processes called by its name, namespaces that anybody is in, holds
    or has mounted."""
    found = [str(path) for path in (lab.folder,) if path.exists()]
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if lab.name.encode() in words or _any_is_of(lab, [process / "ns/net", *(process / "fd").iterdir()]):
                found.append(f"{process.name}: {words}")
    mounted = [line.split()[4] for line in _mounts() if line.split()[3].startswith("net:")]
    return found + [point for point in mounted if _any_is_of(lab, [Path(point)], mounted=True)]


def _any_is_of(lab: Lab, paths: Iterable[Path], *, mounted: bool = False) -> bool:
    """Whether one of these leads to a network namespace of the lab. The number of a namespace that is gone is
    given to the next one that anybody makes, so only those with such a number are looked at closely."""
    numbers = {f"net:[{inode}]" for inode in lab.holder.inodes.values()}
    for path in paths:
        with suppress(OSError):
            if (mounted or str(path.readlink()) in numbers) and cookie(path) in _cookies[lab.holder.program]:
                return True
    return False


def outside() -> frozenset[str]:
    """The mounts and cards in this process's namespaces that labs of these tests might have made."""
    lines = (line.split() for line in _mounts())
    own = f"{remote.ROOT}/{name('')}"
    mounts = {
        f"mount {words[0]} of {words[3]} at {words[4]}"
        for words in lines
        if words[4] in PLACES or words[3].startswith(own) or words[4].startswith(own)
    }
    return frozenset(mounts | {card for _, card in socket.if_nameindex() if CARDS.fullmatch(card)})


def _mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()
