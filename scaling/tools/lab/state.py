"""The state of a lab: `load(name)` reads /run/scaling-lab/NAME/state.json, also inside its nodes; its processes.

The folder also holds hosts, hostfile, hostfile.mpich, fabric.toml, the remote agent and, during a run, run.json.
Everything else lives in namespaces, which end with the holder process. A lab is up while its holder lives.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Network
from pathlib import Path

import msgspec
from msgspec.structs import replace

from scaling.errors import LaunchError, UsageError, near
from scaling.records.point import Record
from scaling.tools.lab.namespaces import start_ticks
from scaling.tools.lab.remote import NAME, ROOT, RUN

SWITCH = "switch"
GRACE_S, PATIENCE_S = 2.0, 15.0


class Nic(Record, frozen=True, kw_only=True):
    name: str
    subnet: str
    rate_bits_per_s: float
    shaped_bits_per_s: float

    def address(self, number: int) -> str:
        return str(IPv4Network(self.subnet)[number])


class Program(Record, frozen=True, kw_only=True):
    """A process, identified by pid and start (clock ticks), because the kernel reuses pids."""

    pid: int
    start_ticks: int

    @property
    def lives(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks


def program(pid: int) -> Program:
    ticks = start_ticks(pid)
    assert ticks is not None, f"process {pid} runs no more"
    return Program(pid=pid, start_ticks=ticks)


class Holder(Record, frozen=True, kw_only=True):
    """The process that keeps a lab's namespaces open. namespaces[room][kind] are its descriptors, inodes[room] the
    identities of the network namespaces."""

    program: Program
    namespaces: dict[str, dict[str, int]]
    inodes: dict[str, int]


NOBODY = Holder(program=Program(pid=0, start_ticks=0), namespaces={}, inodes={})


class Run(Record, frozen=True, kw_only=True):
    """The active run, or a process that it left behind. `mark` is RUN in the environment of all its processes."""

    program: Program
    mark: str
    since_unix_s: float
    command: tuple[str, ...]

    @property
    def told(self) -> str:
        return f"pid {self.program.pid}: {' '.join(self.command)}"


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

    @property
    def flag(self) -> str:
        """The --name of this lab's commands."""
        return f" --name {self.name}" if self.name != "lab" else ""

    def nic(self, name: str, source: str) -> Nic:
        """Find a network by its card. Raises UsageError with `source`."""
        if found := next((nic for nic in self.nics if nic.name == name), None):
            return found
        cards = [nic.name for nic in self.nics]
        raise UsageError(f"{source}: lab {self.name} has no card {name!r}; {near(name, cards)}")

    def link_bits_per_s(self, node: str, nic: Nic) -> float:
        return nic.shaped_bits_per_s * self.links.get(f"{node}.{nic.name}", 1.0)

    def port(self, node: str, nic: Nic) -> str:
        """Name the switch's end of a link; interface names have at most 15 characters."""
        return f"n{self.nodes.index(node) + 1}c{self.nics.index(nic)}"

    @contextmanager
    def opened(self, room: str) -> Iterator[int]:
        """Open a room's network namespace. Raises UsageError if the lab is not up."""
        self.check_lives()
        number = self.holder.namespaces[room]["net"]
        descriptor = os.open(f"/proc/{self.holder.program.pid}/fd/{number}", os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def check_lives(self) -> None:
        if not self.holder.program.lives:
            gone = "its holder process is gone, and its nodes with it"
            raise UsageError(f"lab {self.name}: {gone}; python -m scaling lab up --name {self.name}")


# ---------------------------------------------------------------- files


def folder(name: str) -> Path:
    return ROOT / name


def names() -> tuple[str, ...]:
    """List the labs of this machine, including remains of broken ones."""
    return tuple(sorted(path.name for path in ROOT.iterdir())) if ROOT.is_dir() else ()


def living() -> Iterator[Lab]:
    for name in names():
        with suppress(LaunchError):
            if (lab := find(name)) and lab.holder.program.lives:
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
        raise UsageError(f"no lab {name!r} is up{others}; python -m scaling lab up --name {name}")
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


# ---------------------------------------------------------------- processes


def processes(lab: Lab) -> list[int]:
    """List pids in the nodes and the switch. Without the holder the kernel may reuse an inode, so only processes
    with the lab's name in their environment count."""
    inodes, sure = set(lab.holder.inodes.values()), lab.holder.program.lives

    def network(pid: int) -> int | None:
        with suppress(OSError):
            return Path(f"/proc/{pid}/ns/net").stat().st_ino
        return None

    pids = sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    inside = (pid for pid in pids if pid != os.getpid() and network(pid) in inodes)
    return [pid for pid in inside if sure or _carries(pid, NAME, lab.name)]


def _carries(pid: int, key: str, value: str) -> bool:
    with suppress(OSError):
        return f"{key}={value}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def processes_of(lab: Lab, run: Run) -> list[int]:
    return [pid for pid in processes(lab) if _carries(pid, RUN, run.mark)]


def run_on(lab: Lab) -> Run | None:
    """Find the active run: its `lab run` lives, or processes that it left behind."""
    try:
        run = msgspec.json.decode((lab.folder / "run.json").read_bytes(), type=Run)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    if run.program.lives:
        return run
    left = [Program(pid=pid, start_ticks=start_ticks(pid) or 0) for pid in processes_of(lab, run)]
    return replace(run, program=left[0]) if left else None


def end(find: Callable[[], list[int]]) -> None:
    """End all processes that `find` finds: SIGTERM, after GRACE_S SIGKILL. Raises LaunchError if one survives."""
    _signal(find(), signal.SIGTERM)
    began_s = time.monotonic()
    while left := find():
        waited_s = time.monotonic() - began_s
        if waited_s > PATIENCE_S:
            raise LaunchError(f"process {left[0]} survives SIGKILL; ps -o wchan shows what it waits for")
        if waited_s > GRACE_S:
            _signal(left, signal.SIGKILL)
        time.sleep(0.02)


def end_program(program: Program) -> None:
    end(lambda: [program.pid] if program.lives else [])


def _signal(pids: Collection[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
