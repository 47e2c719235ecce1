"""The state of a lab: `load(name)` reads /run/scaling-lab/NAME/state.json, also inside its nodes.

The folder also holds hosts, hostfile, hostfile.mpich, fabric.toml, the remote agent and, during a run, run.json.
Everything else lives in namespaces, which end with the holder process. A lab is up while its holder lives.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Network
from pathlib import Path

import msgspec

from scaling.errors import LaunchError, UsageError
from scaling.records.point import Record

ROOT = Path("/run/scaling-lab")
SWITCH = "switch"


class Nic(Record, frozen=True, kw_only=True):
    name: str
    subnet: str
    rate_bits_per_s: float
    shaped_bits_per_s: float

    def address(self, number: int) -> str:
        return str(IPv4Network(self.subnet)[number])

    @property
    def prefix(self) -> int:
        return IPv4Network(self.subnet).prefixlen


class Program(Record, frozen=True, kw_only=True):
    """A process, identified by pid and start (clock ticks), because the kernel reuses pids."""

    pid: int
    start_ticks: int

    @property
    def lives(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks


class Holder(Record, frozen=True, kw_only=True):
    """The process that keeps a lab's namespaces open. namespaces[room][kind] are its descriptors, inodes[room] the
    identities of the network namespaces."""

    program: Program
    namespaces: dict[str, dict[str, int]]
    inodes: dict[str, int]


NOBODY = Holder(program=Program(pid=0, start_ticks=0), namespaces={}, inodes={})


class Lab(Record, frozen=True, kw_only=True):
    """A lab; before it is up its holder is NOBODY. `links["node2.ib0"]` is a link's share of its network's rate;
    `down` names inactive cards."""

    name: str
    nodes: tuple[str, ...]
    slots: int
    nics: tuple[Nic, ...]
    holder: Holder = NOBODY
    links: dict[str, float] = {}
    down: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return folder(self.name)

    def nic(self, name: str) -> Nic | None:
        return next((nic for nic in self.nics if nic.name == name), None)

    def link_bits_per_s(self, node: str, nic: Nic) -> float:
        return nic.shaped_bits_per_s * self.links.get(f"{node}.{nic.name}", 1.0)

    def port(self, node: str, nic: Nic) -> str:
        """Name the switch's end of a link; interface names have at most 15 characters."""
        return f"n{self.nodes.index(node) + 1}c{self.nics.index(nic)}"

    def check_lives(self) -> None:
        if not self.holder.program.lives:
            gone = "its holder process is gone, and its nodes with it"
            raise UsageError(f"lab {self.name}: {gone}; {_mend(self.name)}")

    @contextmanager
    def opened(self, room: str, kind: str = "net") -> Iterator[int]:
        self.check_lives()
        number = self.holder.namespaces[room][kind]
        descriptor = os.open(f"/proc/{self.holder.program.pid}/fd/{number}", os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _mend(name: str) -> str:
    return f"python -m scaling lab up --name {name}"


def folder(name: str) -> Path:
    return ROOT / name


def names() -> tuple[str, ...]:
    """List the labs of this machine, including remains of broken ones."""
    return tuple(sorted(path.name for path in ROOT.iterdir())) if ROOT.is_dir() else ()


def living() -> Iterator[Lab]:
    for name in names():
        with suppress(LaunchError):
            lab = find(name)
            if lab is not None and lab.holder.program.lives:
                yield lab


def find(name: str) -> Lab | None:
    """Read a lab, up or broken; None if there is none. Raises LaunchError if its state is unreadable."""
    path = folder(name) / "state.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Lab)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise LaunchError(
            f"{path} cannot be read ({error}): end `scaling.tools.lab.holder {name}` and remove it"
        ) from None


def load(name: str) -> Lab:
    """Read a lab that is up. Raises UsageError if it is not."""
    lab = find(name)
    if lab is None:
        others = ", ".join(lab.name for lab in living())
        others = f" (up are: {others})" if others else ""
        raise UsageError(f"no lab {name!r} is up{others}; {_mend(name)}")
    lab.check_lives()
    return lab


def save(lab: Lab) -> None:
    replace_file(lab.folder / "state.json", msgspec.json.format(msgspec.json.encode(lab)) + b"\n")


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(content)
    new.replace(path)


@contextmanager
def locked() -> Iterator[None]:
    """Lock the labs of this machine. Raises LaunchError if their folder cannot be made."""
    while True:
        try:
            ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
            descriptor = os.open(ROOT, os.O_RDONLY)
        except OSError as error:
            raise LaunchError(f"{ROOT}: {error.strerror}; labs are kept there and need root") from None
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # the last lab ended and its folder was removed while this process waited
    try:
        yield
    finally:
        if not names():
            ROOT.rmdir()
        os.close(descriptor)


def start_ticks(pid: int) -> int | None:
    """Return the start of a process in clock ticks after boot; None if it does not run (zombies do not)."""
    try:
        # after the bracket: field 3 is the state, field 22 the start
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def program(pid: int) -> Program:
    ticks = start_ticks(pid)
    assert ticks is not None, f"process {pid} runs no more"
    return Program(pid=pid, start_ticks=ticks)
