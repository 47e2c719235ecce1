"""Messages between agents and rank 0, as MessagePack."""

from __future__ import annotations

import msgspec

from scaling.records.events import Event
from scaling.records.host import HostInfo
from scaling.records.point import Device, Record
from scaling.records.task import Command, Task
from scaling.records.telemetry import Sample

# Seconds between TERM and KILL after a signal; launchers do not wait long.
INTERRUPT_GRACE_S = 0.2


class Enrol(Record, frozen=True, kw_only=True, tag="enrol"):
    """An agent's first message.

    `missing[strategy]`: why it cannot run on this host; `missing_on_cuda`: why not on its GPUs.
    `name_addresses[strategy]`: the address of the host's name ("" for none), if its ranks always listen there.
    """

    host: HostInfo
    version: str
    code: str
    missing: dict[str, str]
    missing_on_cuda: dict[str, str] = {}
    name_addresses: dict[str, str] = {}

    def lacks(self, strategy: str, device: Device) -> str | None:
        """Return why a strategy cannot run here on a device; None if it can."""
        on_cuda = self.missing_on_cuda.get(strategy) if device == "cuda" else None
        return on_cuda or self.missing.get(strategy)


class Reserved(Record, frozen=True, kw_only=True, tag="reserved"):
    """The agent holds these TCP ports for the attempt, bound but not listening; none on failure."""

    attempt: int
    slot: int
    ports: tuple[int, ...]


class Paused(Record, frozen=True, kw_only=True, tag="paused"):
    """The attempt's children are stopped. `canary_*` as in `Window`, None without a canary.
    `gpus`: readings of the worker's GPUs."""

    attempt: int
    launch_rank: int
    canary_s: float | None = None
    canary_queued_s: float = 0.0
    gpus: tuple[Sample, ...] = ()


class Report(Record, frozen=True, kw_only=True, tag="report"):
    """An event of a child of an attempt."""

    attempt: int
    rank: int
    role: str
    event: Event


class Signalled(Record, frozen=True, kw_only=True, tag="signalled"):
    """The agent received a signal to end."""

    signal: int


class Alive(Record, frozen=True, kw_only=True, tag="alive"):
    """The agent is alive; it sent nothing else for a while."""


class Missing(Record, frozen=True, kw_only=True, tag="missing"):
    """The answer to Ask: why strategies cannot run on that host or its GPUs. Others are not listed."""

    missing: dict[str, str]
    missing_on_cuda: dict[str, str] = {}


class Located(Record, frozen=True, kw_only=True, tag="located"):
    """The answer to Locate; `error` is "" if the host has the data."""

    error: str = ""


class Listened(Record, frozen=True, kw_only=True, tag="listened"):
    """The answer to Listen."""


class Preloaded(Record, frozen=True, kw_only=True, tag="preloaded"):
    """The answer to Preload: the fork servers are ready. `fresh`: frameworks whose import has initialised CUDA, so
    that their workers start fresh."""

    fresh: tuple[str, ...] = ()


class Way(Record, frozen=True, kw_only=True, array_like=True):
    """How a peer was reached: the source address, or the error."""

    source: str = ""
    error: str = ""


class Admitting(Record, frozen=True, kw_only=True, tag="admitting"):
    """The answer to Admit: the port that takes connections, or the error."""

    network: str
    port: int = 0
    error: str = ""


class Reached(Record, frozen=True, kw_only=True, tag="reached"):
    """The answer to Reach: a Way for each peer, in order."""

    network: str
    ways: tuple[Way, ...]


Heard = Report | Reserved | Paused
Answer = Enrol | Missing | Located | Admitting | Reached | Listened | Preloaded
ToSweep = Answer | Heard | Alive | Signalled


class Ask(Record, frozen=True, kw_only=True, tag="ask"):
    """Ask which of these strategies cannot run; the answer is Missing."""

    strategies: tuple[str, ...]


class Locate(Record, frozen=True, kw_only=True, tag="locate"):
    """Ask whether the host has this data; the answer is Located."""

    data: str
    data_dir: str


class Admit(Record, frozen=True, kw_only=True, tag="admit"):
    """Take connections at this address; the answer is Admitting. Stop if the address is ""."""

    network: str
    address: str


class Reach(Record, frozen=True, kw_only=True, tag="reach"):
    """Connect to these addresses and ports; the answer is Reached."""

    network: str
    peers: tuple[tuple[str, int], ...]
    within_s: float


class Reserve(Record, frozen=True, kw_only=True, tag="reserve"):
    """Hold `count` free TCP ports for the attempt; the answer is Reserved with the same `slot`."""

    attempt: int
    slot: int
    count: int
    address: str


class Listen(Record, frozen=True, kw_only=True, tag="listen"):
    """Count the traffic of the host's cards for some seconds while nothing runs; the answer is Listened."""

    seconds: float


class Preload(Record, frozen=True, kw_only=True, tag="preload"):
    """Start fork servers with the imports of these tasks and strategies; the answer is Preloaded."""

    tasks: tuple[Task, ...]
    strategies: tuple[str, ...] = ()


class Assign(Record, frozen=True, kw_only=True, tag="assign"):
    """Start this child."""

    task: Task


class Tell(Record, frozen=True, kw_only=True, tag="tell"):
    """Hand a command to the attempt's worker. Helpers are watched during measured windows."""

    attempt: int
    command: Command


class Account(Record, frozen=True, kw_only=True, tag="account"):
    """The measured windows are in: report the readings so far, as Measured for each child."""

    attempt: int


class Pause(Record, frozen=True, kw_only=True, tag="pause"):
    """Stop the attempt's children until their next Tell, after a `canary` if asked; the answer is Paused."""

    attempt: int
    canary: bool = False


class Release(Record, frozen=True, kw_only=True, tag="release"):
    """End the attempt's children and release its ports; `grace_s` is between TERM and KILL."""

    attempt: int
    reason: str
    grace_s: float = 2.0


class Dismiss(Record, frozen=True, kw_only=True, tag="dismiss"):
    """The launch is over. `exit_code`: of all ranks, if a signal ended it."""

    exit_code: int = 0


Answered = Ask | Locate | Admit | Reach | Reserve | Listen | Preload
ToAgent = Answered | Assign | Tell | Account | Pause | Release | Dismiss

ENCODER = msgspec.msgpack.Encoder()
AGENT_DECODER = msgspec.msgpack.Decoder(ToAgent)
SWEEP_DECODER = msgspec.msgpack.Decoder(tuple[ToSweep, ...])
