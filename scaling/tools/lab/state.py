"""What is known of a lab: `load(name)` reads /run/scaling-lab/NAME/state.json, inside its nodes too.

The folder of a lab holds state.json, hosts, hostfile, hostfile.mpich, fabric.toml, the remote agent and,
while a run is on, run.json. All else of a lab lives in namespaces, which the holder process keeps open: they
and their links end with it. A lab is up while its holder lives.
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
    """A card that every node has, and its network: the rate declared for it, and the one shaped now."""

    name: str
    subnet: str
    rate_bits_per_s: float
    shaped_bits_per_s: float

    def address(self, number: int) -> str:
        """Of node 1, 2, ..."""
        return str(IPv4Network(self.subnet)[number])

    @property
    def prefix(self) -> int:
        """Bits of the network's part of an address."""
        return IPv4Network(self.subnet).prefixlen


class Program(Record, frozen=True, kw_only=True):
    """A process for certain: the kernel gives a pid again, but not with the same start (clock ticks)."""

    pid: int
    start_ticks: int

    @property
    def lives(self) -> bool:
        """Whether it still runs."""
        return start_ticks(self.pid) == self.start_ticks


class Holder(Record, frozen=True, kw_only=True):
    """The process that keeps a lab's namespaces open.

    namespaces[room][kind]: its descriptor of the `net`, `uts`, `ipc` or `mnt` namespace of a node, or of the
    switch's `net`. inodes[room]: the identity of the room's network namespace while it exists.
    """

    program: Program
    namespaces: dict[str, dict[str, int]]
    inodes: dict[str, int]


class Lab(Record, frozen=True, kw_only=True):
    """A lab that is up. `links["node2.ib0"]` is a link's share of its network's shaped rate where that is not
    1; `down` names the cards that are taken down."""

    name: str
    nodes: tuple[str, ...]
    slots: int
    nics: tuple[Nic, ...]
    holder: Holder
    links: dict[str, float] = {}
    down: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return folder(self.name)

    def nic(self, name: str) -> Nic | None:
        """The card of that name."""
        return next((nic for nic in self.nics if nic.name == name), None)

    def link_bits_per_s(self, node: str, nic: Nic) -> float:
        """What the link of one node is shaped to now, each way."""
        return nic.shaped_bits_per_s * self.links.get(f"{node}.{nic.name}", 1.0)

    def port(self, node: str, nic: Nic) -> str:
        """The switch's end of a link: short, as names of interfaces end after 15 characters."""
        return f"n{self.nodes.index(node) + 1}c{self.nics.index(nic)}"

    @contextmanager
    def opened(self, room: str, kind: str = "net") -> Iterator[int]:
        """A descriptor of a namespace. Raises UsageError when the holder is gone."""
        if not self.holder.program.lives:
            raise UsageError(
                f"lab {self.name}: its holder process is gone, and its nodes with it; {_mend(self.name)}"
            )
        number = self.holder.namespaces[room][kind]
        descriptor = os.open(f"/proc/{self.holder.program.pid}/fd/{number}", os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _mend(name: str) -> str:
    return f"python -m scaling lab up --name {name}"


def folder(name: str) -> Path:
    """Where the files of a lab are."""
    return ROOT / name


def names() -> tuple[str, ...]:
    """All labs of this machine, also what is left of broken ones."""
    return tuple(sorted(path.name for path in ROOT.iterdir())) if ROOT.is_dir() else ()


def living() -> Iterator[Lab]:
    """The labs that are up."""
    for name in names():
        with suppress(LaunchError):
            lab = find(name)
            if lab is not None and lab.holder.program.lives:
                yield lab


def find(name: str) -> Lab | None:
    """The lab, up or broken; None where there is none. Raises LaunchError when its state cannot be read."""
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
    """The lab, which is up. Raises UsageError when it is not."""
    lab = find(name)
    if lab is None:
        others = ", ".join(lab.name for lab in living())
        others = f" (up are: {others})" if others else ""
        raise UsageError(f"no lab {name!r} is up{others}; {_mend(name)}")
    if not lab.holder.program.lives:
        raise UsageError(f"lab {name}: its holder process is gone, and its nodes with it; {_mend(name)}")
    return lab


def save(lab: Lab) -> None:
    """Keep the state: readers see the old one or the new one."""
    replace_file(lab.folder / "state.json", msgspec.json.format(msgspec.json.encode(lab)) + b"\n")


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(content)
    new.replace(path)


@contextmanager
def locked() -> Iterator[None]:
    """One at a time: what makes, changes or ends labs of this machine. Raises LaunchError where no folder of labs
    can be made."""
    while True:
        try:
            ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
            descriptor = os.open(ROOT, os.O_RDONLY)
        except OSError as error:
            raise LaunchError(f"{ROOT}: {error.strerror}; labs are kept there, by root") from None
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # somebody ended the last lab, and removed the folder, while we waited
    try:
        yield
    finally:
        if not names():
            ROOT.rmdir()
        os.close(descriptor)


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks after boot; None when it runs no more (zombies do not run)."""
    try:
        # Fields after the command's closing bracket, from the third on: the state, ..., the start (the 22nd).
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def program(pid: int) -> Program:
    """The running process of that pid."""
    ticks = start_ticks(pid)
    assert ticks is not None, f"process {pid} runs no more"
    return Program(pid=pid, start_ticks=ticks)
