"""What a way to exchange gradients is to the benchmark; README.md here tells how to write one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from scaling.errors import UsageError, near
from scaling.records import crossing
from scaling.records.crossing import Bounds, Parts
from scaling.records.point import Device, Pass, Pattern, Point, Record, Skill
from scaling.records.task import Clocks, Task


class Option(Record, frozen=True, kw_only=True):
    """An option of a strategy, set by `--option key=value`: how it is read, its default, what it does."""

    type: Callable[[str], Any]
    default: Any
    help: str


class Traits(Record, frozen=True, kw_only=True):
    """What the sweep must know of a strategy to launch and judge it.

    drives: what one worker process drives: its rank's `device`; all devices of a `node` (a point must then
    fit in one); or all of the `point`, whose devices compute in helpers. Only rank 0 has a worker in the
    last two, and its `samples` count those of all devices.
    ports: TCP ports to reserve on rank 0's host (`task.ports`); rank_ports: one on each rank's host too
    (`task.rank_ports`); servers: it has parameter servers, placed by --servers (`task.servers`, a port each).
    synchronous: ranks wait for each other in each step and must end with one digest, or the point is void.
    nccl: on CUDA its ranks meet in NCCL, which takes no two ranks on one GPU.
    polling_cores: cores that a clock of the strategy's own keeps busy beside each rank, however long a step is.
    accuracy: what its trainer can do of a training to an accuracy (evaluating.py).
    is_open: its servers listen on all addresses of a host and ask nobody for a password.
    passes: what its step can be told to do (`Workload.pass_`): parts of a step, where it exchanges nothing.
    """

    drives: Literal["device", "node", "point"] = "device"
    ports: int = 0
    rank_ports: bool = False
    servers: bool = False
    synchronous: bool = True
    nccl: bool = False
    polling_cores: float = 0.0
    is_open: bool = False
    passes: tuple[Pass, ...] = ("step",)
    accuracy: tuple[Skill, ...] = ()

    @property
    def pattern(self) -> Pattern:
        """How gradients travel, for the bytes that a network must carry."""
        if self.drives == "node":
            return "inside"
        return "servers" if self.servers else "ring"


class Helper(Record, frozen=True, kw_only=True):
    """A child that is not a worker (server, scheduler, rendezvous), run by rank `rank`'s agent, or where
    `task.servers[server]` is. It reports `Announce` once it can be reached and ends with the point.

    It may use all CPUs of its agent, unless it computes for its rank (`computes`): then it has the rank's
    CPUs, threads and device.

    awaited: workers start once it has announced itself; if not, with it, and see for themselves when it can be
    reached (listening.py). What it announces they are then not told.
    """

    name: str
    rank: int = 0
    server: int | None = None
    computes: bool = False
    awaited: bool = True


class Trainer(Protocol):
    """One rank of one point, inside the worker. The loop alone times it."""

    parameters: int
    gradient_bytes: int
    device_name: str
    versions: dict[str, str]
    notes: tuple[str, ...]

    @property
    def samples(self) -> int:
        """Samples that this rank has trained on so far, counted from the batches really fed."""

    def step(self) -> None:
        """One optimisation step with its gradient exchange; may return before the device is done."""

    def sync(self) -> None:
        """Wait for the device."""

    def loss(self) -> float | None:
        """The last step's loss; only called after `sync`. None where nothing is trained (`comm`)."""

    def digest(self) -> str | None:
        """Hash of the parameters: equal on all ranks in synchronous modes, or the point is void. Only asked of a
        trainer that does not show them (`abilities.Shown`)."""

    def peak_memory_bytes(self) -> int:
        """Most device memory in use so far; 0 where the device has none of its own."""

    def close(self) -> None:
        """Leave the exchange."""


class Strategy:
    """One way, or a few like ways, to exchange gradients in one framework: the agent's side of it.

    A subclass sets `names` (each `framework:mode`) and `baseline`, the plain loop that efficiency is measured
    against, and overrides what differs from the defaults: no helpers, nothing refused, nothing missing. Its file
    imports no framework. `trainer` and `server` name the modules that the worker and the helpers load: a
    `TrainerModule` and a `ServerModule`; by default they are the strategy's own, which may then import its
    framework only inside functions. `native_formats` are those that its own pipeline (native_feed.py) reads,
    `native_hint` says how files come to be in them. `preload` modules that a fork server imports so that its
    children need not, beside its framework's: importing them starts no thread and opens no device. `obeying` says
    which installation obeys --interconnect, for one whose `name_address` is not None.
    """

    names: tuple[str, ...] = ()
    baseline: str = ""
    options: Mapping[str, Option] = {}
    trainer: str = ""
    server: str = ""
    native_formats: tuple[str, ...] = ()
    native_hint: str = ""
    preload: tuple[str, ...] = ()
    obeying: str = ""

    @property
    def trainer_module(self) -> str:
        """Where the worker finds `connect`."""
        return self.trainer or type(self).__module__

    @property
    def server_module(self) -> str:
        """Where a helper finds `serve`."""
        return self.server or type(self).__module__

    def traits(self, _name: str) -> Traits:
        """How it is launched and judged."""
        return Traits()

    def devices(self, _name: str) -> tuple[Device, ...]:
        """The kinds of device that it runs on."""
        return ("cpu", "cuda")

    def missing(self, _name: str, _device: Device = "cpu") -> str | None:
        """Why it cannot run on this device of this host and how to mend that, found without importing the
        framework. On `cuda` the host has a GPU, unless that is all that it runs on."""
        return None

    def name_address(self, _name: str) -> str | None:
        """The address at which its ranks on this host listen whatever network is asked for, because its library
        takes that of the host's name ("" if no address of the host is); None if it obeys."""
        return None

    def refuse(self, _point: Point) -> str | None:
        """Why it cannot do what the point asks for (precision, memory format, compile, model), naming the flag
        and what it can do; None when it can. Asked at planning, without the framework."""
        return None

    def helpers(self, _task: Task) -> list[Helper]:
        """Servers and rendezvous that must be up before the workers; the task is rank 0's. Only asked for
        points that exchange (`exchange`, `comm`)."""
        return []

    def environ(self, _task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        """Environment of this child, worker or helper (`task.role`); pure."""
        return {}

    def updates_all(self, point: Point) -> bool:
        """Whether each rank updates all parameters, as the plain loop does: then it may not compute less than that
        without a mark (AUDIT). Servers, one process for a node, and sharded optimizers do otherwise."""
        traits = self.traits(point.strategy)
        return traits.drives == "device" and not traits.servers

    def compresses(self, _point: Point) -> bool:
        """Whether the point's options make gradients smaller on their way."""
        return False

    def wire_parts(self, point: Point) -> Parts | None:
        """Of the gradients' bytes, the part that goes out and the part that comes back; None where that is not
        known."""
        return None if self.compresses(point) else crossing.WHOLE

    def by_nccl(self, point: Point) -> bool:
        """Whether NCCL carries the exchange, and so chooses cards and algorithm."""
        return self.traits(point.strategy).nccl and point.hardware.device == "cuda"

    def ring_of(self, task: Task) -> Sequence[str]:
        """The hosts of all ranks in the order in which the library's ring goes."""
        return task.hosts

    def bytes_per_step(self, task: Task, gradient_bytes: int) -> Bounds | None:
        """What one step of the point must send from node to node, over all nodes, at least and at most; where
        ranks do not wait for each other, what one step of the task's rank must.

        None where that is not known. Reports hold the kernel's counters against it.
        """
        traits, parts = self.traits(task.point.strategy), self.wire_parts(task.point)
        servers = [server.host for server in task.servers]
        if parts is None or not (traits.synchronous or traits.servers):
            return None
        if self.by_nccl(task.point):
            return crossing.nccl_bounds(gradient_bytes * parts[0], task.hosts)
        hosts = self.ring_of(task) if traits.synchronous else task.hosts[task.rank : task.rank + 1]
        return crossing.bytes_per_step(traits.pattern, gradient_bytes, hosts, servers, parts)


class TrainerModule(Protocol):
    """What a worker loads. Importing it imports the framework, which is timed apart from connecting."""

    def connect(self, task: Task) -> Trainer:
        """Join the exchange, build model and optimiser."""


class ServerModule(Protocol):
    """What a helper loads."""

    def serve(self, task: Task, announce: Callable[[dict[str, str]], None]) -> None:
        """Serve `task.role`; call `announce({...})` once reachable; return never or at the end."""


class Exchange(Record, frozen=True, kw_only=True):
    """How forecasts (predict/) model the exchange of a mode, in their words (`setting.py` there).

    method: "ring", "sharded" or "servers_in_host"; modes with parameter servers need none. by_nccl: on GPUs NCCL
    carries it, under whatever name.
    """

    method: str = "ring"
    overlap: str = "other"
    messages: str = "tensors"
    by_nccl: bool = False


def _nothing(_environ: Mapping[str, str]) -> str:
    return ""


class Framework(Record, frozen=True, kw_only=True):
    """What must be known of a framework before any of its strategies is asked. Its folder declares it.

    Modes
      strategies: by mode, the module of its folder that holds the strategy as `STRATEGY`, in the order of --list.
      aliases: other names that its users write for a mode.
      any_mode: each mode is the plain loop, and none is listed.
      defaults: by device, the mode that is measured if no --strategy is given.
      mode_flag: a flag of `run` that names its modes as its users do.
      exchanges: by mode, how forecasts model its exchange; "" stands for the other modes.

    Workers
      startup_s: seconds until a fresh worker is ready, importing mostly, for --dry-run.
      preload: modules that a fork server imports, so that a worker need not; none where workers cannot be forked.
      returns_early: devices on which a step returns before it is done, and no clock of the device times it.
      resident_bytes: about what a worker keeps in memory without any model.
      kernels_up_to: the newest GPUs, by compute capability, that its packages have kernels for.
      translation_s: seconds that the driver takes to compile all kernels for newer GPUs.
      compiler: what builds kernels while it trains, under --compile; `compiler_lacks` is what that would need and
      does not find, told from the environment.

    Installation
      distributions: by package, the names under which it is distributed, for the versions in a run's header.
      essential: packages of which all nodes need the same version.
      built_for_cuda: the CUDA release that it is built with, "" for none, None if it is not installed. The
      function imports nothing of the framework.
      all_reduce: the module whose process times all-reduces for `check`, over the modes in `defaults`.

    Environment variables, as patterns that match from the start of a name
      variables: they change rates, and are recorded.
      own_variables: strategies set them for each process, and those of the user are dropped.
      corrected: by name, a value that workers fail with, the one that they get, and why.

    explained: by label, what "How to read" says below a table with its rows.
    """

    name: str
    strategies: dict[str, str]
    aliases: dict[str, str] = {}
    any_mode: bool = False
    defaults: dict[Device, str] = {}
    mode_flag: str = ""
    exchanges: dict[str, Exchange] = {}
    startup_s: float = 3.0
    preload: tuple[str, ...] = ()
    returns_early: tuple[Device, ...] = ()
    resident_bytes: int = 10**9
    kernels_up_to: tuple[int, int] | None = None
    translation_s: float = 0.0
    compiler: str = ""
    compiler_lacks: Callable[[Mapping[str, str]], str] = _nothing
    distributions: dict[str, tuple[str, ...]] = {}
    essential: tuple[str, ...] = ()
    built_for_cuda: Callable[[], str | None] = lambda: None
    all_reduce: str = ""
    variables: str = ""
    own_variables: str = ""
    corrected: dict[str, tuple[str, str, str]] = {}
    explained: dict[str, str] = {}

    def exchange(self, mode: str) -> Exchange:
        """How the exchange of a mode is modelled."""
        return self.exchanges.get(mode) or self.exchanges.get("", Exchange())


# What the package's own plain loops can do.
PASSES = Traits(passes=("forward", "backward", "step"), accuracy=("evaluate", "rate"))

# The agent's clocks end a hung point and find its cause; a framework's own timeout only comes after them.
TIMEOUT_MARGIN_S = 30.0


def timeout_s(clocks: Clocks) -> float:
    """How long a framework may wait for peers, to be set in it: longer than the agent waits for its rank, whose
    clocks stand still while others take their turns, as the framework's do not."""
    return max(clocks.startup_s, clocks.stall_s, clocks.deadline_s) + TIMEOUT_MARGIN_S


TRUE = ("1", "true", "yes", "on")
FALSE = ("0", "false", "no", "off")


def read_options(known: Mapping[str, Option], given: Mapping[str, str]) -> dict[str, Any]:
    """All options of a strategy with their values: what was given, else the default.

    Raises UsageError for an unknown key (with the near match) or a value of another type.
    """
    for key in given:
        if key not in known:
            raise UsageError(f"--option {key}={given[key]}: unknown; {near(key, known)}")
    return {
        key: _parse(key, option, given[key]) if key in given else option.default for key, option in known.items()
    }


def _parse(key: str, option: Option, text: str) -> Any:
    if option.type is bool:
        if text.lower() in TRUE + FALSE:
            return text.lower() in TRUE
        raise UsageError(f"--option {key}={text}: expected true or false")
    try:
        return option.type(text)
    except ValueError:
        raise UsageError(f"--option {key}={text}: expected {option.type.__name__.replace('_', ' ')}") from None
