"""What agents and rank 0 say to each other, as MessagePack: orders to agents, news to the sweep."""

from __future__ import annotations

import msgspec

from scaling.records.events import Event
from scaling.records.host import HostInfo
from scaling.records.point import Device, Record
from scaling.records.task import Command, Task

# What TERM gets before KILL once a signal has asked for the end: launchers do not wait long.
INTERRUPT_GRACE_S = 0.2


class Enrol(Record, frozen=True, kw_only=True, tag="enrol"):
    """An agent's first message. `missing[strategy]` says why one of the package cannot run on that host;
    `missing_on_cuda`, where it has GPUs, why not on these. `name_addresses[strategy]` is the address of the host's
    name ("" for none) if its ranks listen there whatever network is asked for."""

    host: HostInfo
    version: str
    code: str
    missing: dict[str, str]
    missing_on_cuda: dict[str, str] = {}
    name_addresses: dict[str, str] = {}

    def lacks(self, strategy: str, device: Device) -> str | None:
        """Why a strategy cannot run here on a device; None where it can."""
        on_cuda = self.missing_on_cuda.get(strategy) if device == "cuda" else None
        return on_cuda or self.missing.get(strategy)


class Reserved(Record, frozen=True, kw_only=True, tag="reserved"):
    """The agent holds these TCP ports for the attempt, bound but not listening; none if it could not."""

    attempt: int
    slot: int
    ports: tuple[int, ...]


class Paused(Record, frozen=True, kw_only=True, tag="paused"):
    """The attempt's children here stand still; what a canary took then, None where none was asked for, and how
    much of that others had the core."""

    attempt: int
    launch_rank: int
    canary_s: float | None = None
    canary_queued_s: float = 0.0


class Report(Record, frozen=True, kw_only=True, tag="report"):
    """An event of one child of one attempt."""

    attempt: int
    rank: int
    role: str
    event: Event


class Signalled(Record, frozen=True, kw_only=True, tag="signalled"):
    """A signal asked the agent for the end."""

    signal: int


class Alive(Record, frozen=True, kw_only=True, tag="alive"):
    """The agent is at work, and said nothing else for a while."""


class Missing(Record, frozen=True, kw_only=True, tag="missing"):
    """An agent's answer to Ask: by strategy, why it cannot run on that host, and why not on its GPUs; nothing of
    those that can."""

    missing: dict[str, str]
    missing_on_cuda: dict[str, str] = {}


class Located(Record, frozen=True, kw_only=True, tag="located"):
    """The agent's host has the data, or why not."""

    error: str = ""


class Tried(Record, frozen=True, kw_only=True, tag="tried"):
    """The agent's host can start workers of the revision, or why not."""

    error: str = ""


class Listened(Record, frozen=True, kw_only=True, tag="listened"):
    """The agent knows what its host's cards carry while nothing runs."""


class Preloaded(Record, frozen=True, kw_only=True, tag="preloaded"):
    """The agent's fork servers are ready, as far as it has any."""


class Way(Record, frozen=True, kw_only=True, array_like=True):
    """How a peer was reached: from which address of this host, or why not."""

    source: str = ""
    error: str = ""


class Admitting(Record, frozen=True, kw_only=True, tag="admitting"):
    """The agent's host takes connections at this port, or why it cannot."""

    network: str
    port: int = 0
    error: str = ""


class Reached(Record, frozen=True, kw_only=True, tag="reached"):
    """How each of the peers of a Reach was reached, in their order."""

    network: str
    ways: tuple[Way, ...]


Heard = Report | Reserved | Paused
Answer = Enrol | Missing | Located | Tried | Admitting | Reached | Listened | Preloaded
ToSweep = Answer | Heard | Alive | Signalled


class Ask(Record, frozen=True, kw_only=True, tag="ask"):
    """Say which of these strategies cannot run on your host; the answer is Missing."""

    strategies: tuple[str, ...]


class Locate(Record, frozen=True, kw_only=True, tag="locate"):
    """Say whether this data lies there on your host; the answer is Located."""

    data: str
    data_dir: str


class Try(Record, frozen=True, kw_only=True, tag="try"):
    """Say whether workers of these strategies can be started from the revision of this package that lies in a
    folder; the answer is Tried."""

    code: str
    strategies: tuple[str, ...]


class Admit(Record, frozen=True, kw_only=True, tag="admit"):
    """Take connections at this address of a network, and answer with Admitting; none any more where it is ""."""

    network: str
    address: str


class Reach(Record, frozen=True, kw_only=True, tag="reach"):
    """Connect to these addresses and ports over a network; the answer is Reached."""

    network: str
    peers: tuple[tuple[str, int], ...]
    within_s: float


class Reserve(Record, frozen=True, kw_only=True, tag="reserve"):
    """Hold `count` free TCP ports on `address` for the attempt; the answer has the same `slot`."""

    attempt: int
    slot: int
    count: int
    address: str


class Listen(Record, frozen=True, kw_only=True, tag="listen"):
    """Nothing runs now: count for so many seconds what your host's cards carry all the same; the answer is
    Listened."""

    seconds: float


class Preload(Record, frozen=True, kw_only=True, tag="preload"):
    """Import what children of tasks like these need, and of these strategies, to fork them from; the answer is
    Preloaded."""

    tasks: tuple[Task, ...]
    strategies: tuple[str, ...] = ()


class Assign(Record, frozen=True, kw_only=True, tag="assign"):
    """Start this child."""

    task: Task


class Tell(Record, frozen=True, kw_only=True, tag="tell"):
    """Hand a command to the attempt's worker; its helpers are watched while measured windows run."""

    attempt: int
    command: Command


class Account(Record, frozen=True, kw_only=True, tag="account"):
    """The attempt's measured windows are in: report what was read meanwhile, of each child as Measured."""

    attempt: int


class Pause(Record, frozen=True, kw_only=True, tag="pause"):
    """Stop the attempt's children until their next Tell: others are measured. With `canary` try one on its
    worker's cores then; the answer is Paused."""

    attempt: int
    canary: bool = False


class Release(Record, frozen=True, kw_only=True, tag="release"):
    """End what still runs of the attempt and give back its ports. `grace_s` is what TERM gets before KILL."""

    attempt: int
    reason: str
    grace_s: float = 2.0


class Dismiss(Record, frozen=True, kw_only=True, tag="dismiss"):
    """The launch is over."""


Answered = Ask | Locate | Try | Admit | Reach | Reserve | Listen | Preload
ToAgent = Answered | Assign | Tell | Account | Pause | Release | Dismiss

ENCODER = msgspec.msgpack.Encoder()
AGENT_DECODER = msgspec.msgpack.Decoder(ToAgent)
SWEEP_DECODER = msgspec.msgpack.Decoder(tuple[ToSweep, ...])
