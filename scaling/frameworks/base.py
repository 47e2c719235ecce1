"""Interfaces of a strategy, its helpers, its trainer and its framework. README.md explains how to write one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_type_hints

import msgspec

from scaling.errors import StrategyError, UsageError, near
from scaling.records import crossing
from scaling.records.crossing import Bounds, Parts
from scaling.records.point import Device, Pass, Pattern, Point, Record, Skill
from scaling.records.task import Clocks, Task


class Option(Record, frozen=True, kw_only=True):
    """An option of a strategy, set by `--option key=value`."""

    type: Callable[[str], Any]
    default: Any
    help: str


class Traits(Record, frozen=True, kw_only=True):
    """How the sweep launches and judges a strategy.

    * drives: what one worker process drives.
      * `device`: the device of its rank.
      * `node`: all devices of a node; a point must fit in one node.
      * `point`: all devices of the point, which compute in helpers.
      * With `node` and `point` only rank 0 has a worker. Its `samples` count all devices.
    * ports: number of TCP ports to reserve on rank 0's host (`task.ports`).
    * rank_ports: reserve one more port on each rank's host (`task.rank_ports`).
    * servers: it has parameter servers, placed by --servers (`task.servers`), with a port each.
    * synchronous: ranks wait for each other in each step. They must end with equal digests, or the point is void.
    * nccl: its ranks on CUDA use NCCL, which accepts only one rank per GPU.
    * polling_cores: cores per rank that a polling thread of the library uses, whatever a step takes.
    * is_open: its servers listen on all addresses of a host without a password.
    * passes: the parts of a step that it can do without exchange (`Workload.pass_`).
    * accuracy: what its trainer supports of a training to an accuracy (abilities.EVALUATING).
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
        """Return how gradients travel, from which the bytes on the network follow."""
        if self.drives == "node":
            return "inside"
        return "servers" if self.servers else "ring"


class Helper(Record, frozen=True, kw_only=True):
    """A child process that is not a worker: server, scheduler or rendezvous.

    It runs on rank `rank`'s agent, or where `task.servers[server]` is placed. It reports `Announce` once it can be
    reached, and ends with the point.

    * computes: it computes for its rank and has the rank's CPUs, threads and device. Others may use all CPUs of
      their agent.
    * awaited: workers start after it has announced itself, and get what it announced. If False, both start
      together and workers wait until it can be reached (`until_it_listens`).
    """

    name: str
    rank: int = 0
    server: int | None = None
    computes: bool = False
    awaited: bool = True


class Trainer(Protocol):
    """One rank of one point, inside the worker. Only the loop times it."""

    parameters: int
    gradient_bytes: int
    device_name: str
    versions: dict[str, str]
    notes: tuple[str, ...]

    @property
    def samples(self) -> int:
        """Return the samples that this rank has trained on, counted from the batches that were fed."""

    def step(self) -> None:
        """Do one optimisation step with its gradient exchange. It may return before the device is done."""

    def sync(self) -> None:
        """Wait for the device."""

    def loss(self) -> float | None:
        """Return the last step's loss; None if nothing is trained (`comm`). Call it only after `sync`."""

    def digest(self) -> str | None:
        """Return a hash of the parameters. In synchronous modes it must be equal on all ranks, or the point is
        void. It is not called if the trainer shows its parameters (`abilities.Able`)."""

    def peak_memory_bytes(self) -> int:
        """Return the peak device memory in bytes; 0 if the device has no memory of its own."""

    def close(self) -> None:
        """Leave the exchange."""


class Strategy:
    """One way, or a few similar ways, to exchange gradients in one framework: the agent's side.

    Its file imports no framework. A subclass overrides what differs from the defaults: no helpers, nothing
    refused, nothing missing.

    * names: each a `framework:mode`.
    * baseline: the plain loop that efficiency is measured against.
    * trainer, server: the modules that workers and helpers load (`TrainerModule`, `ServerModule`). By default both
      are the strategy's own module, which may then import its framework only inside functions.
    * native_formats: the formats that its own pipeline (`--feed native`) reads.
    * native_hint: how to convert files to these formats.
    * preload: modules that a fork server imports besides its framework's. Their import starts no thread and opens
      no device.
    * lead: the module whose `lead(task, act)` has the worker's main thread; it runs `act`, the loop, in another.
    * obeying: which installation obeys --interconnect, if `name_address` is not None.
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
    lead: str = ""

    @property
    def trainer_module(self) -> str:
        return self.trainer or type(self).__module__

    @property
    def server_module(self) -> str:
        return self.server or type(self).__module__

    @classmethod
    def options_of(cls, point: Point) -> dict[str, Any]:
        """Return the values of its options. Raises UsageError, as `read_options` does."""
        return read_options(cls.options, point.options)

    def traits(self, _name: str) -> Traits:
        return Traits()

    def devices(self, _name: str) -> tuple[Device, ...]:
        return ("cpu", "cuda")

    def missing(self, _name: str, _device: Device = "cpu") -> str | None:
        """Return why it cannot run on this device of this host and how to fix that, or None. It must not import
        the framework. For `cuda` the host is known to have a GPU, unless the strategy runs on GPUs only."""
        return None

    def name_address(self, _name: str) -> str | None:
        """Return the address at which its ranks here listen whatever network is chosen, or None if it obeys. Such
        a library takes the address of the host's name. Return "" if this host does not have that address."""
        return None

    def refuse(self, _point: Point) -> str | None:
        """Return why it cannot do what the point asks for, or None. The reason names the flag and the supported
        values. It is called while planning, without the framework."""
        return None

    def helpers(self, _task: Task) -> list[Helper]:
        """Return servers and rendezvous; the task is rank 0's. Called only for kinds `exchange` and `comm`."""
        return []

    def environ(self, _task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of this child, worker or helper (`task.role`). It is a pure function."""
        return {}

    def updates_all(self, point: Point) -> bool:
        """Return whether each rank updates all parameters, as the plain loop does. A rank that computes less than
        the plain loop is then marked AUDIT. Servers, one process per node and sharded optimizers are exempt."""
        traits = self.traits(point.strategy)
        return traits.drives == "device" and not traits.servers

    def compresses(self, _point: Point) -> bool:
        """Return whether the point's options compress gradients."""
        return False

    def wire_parts(self, point: Point) -> Parts | None:
        """Return the fractions of the gradients' bytes that are sent and that come back, or None if unknown."""
        return None if self.compresses(point) else crossing.WHOLE

    def by_nccl(self, point: Point) -> bool:
        """Return whether NCCL carries the exchange, and so chooses cards and algorithm."""
        return self.traits(point.strategy).nccl and point.hardware.device == "cuda"

    def ring_of(self, task: Task) -> Sequence[str]:
        """Return the hosts of all ranks in the order of the library's ring."""
        return task.hosts

    def bytes_per_step(self, task: Task, gradient_bytes: int) -> Bounds | None:
        """Return the least and most bytes that one step must send between all nodes; None if unknown. They are
        those of the task's rank if ranks do not wait for each other. Reports show them next to the kernel's
        counters."""
        traits, parts = self.traits(task.point.strategy), self.wire_parts(task.point)
        servers = [server.host for server in task.servers]
        if parts is None or not (traits.synchronous or traits.servers):
            return None
        if self.by_nccl(task.point):
            return crossing.nccl_bounds(gradient_bytes * parts[0], task.hosts)
        hosts = self.ring_of(task) if traits.synchronous else task.hosts[task.rank : task.rank + 1]
        return crossing.bytes_per_step(traits.pattern, gradient_bytes, hosts, servers, parts)


class WithNccl(Strategy):
    """Base, before the framework's own, of strategies with a mode `nccl`, which runs on GPUs only."""

    def devices(self, name: str) -> tuple[Device, ...]:
        return ("cuda",) if name.endswith(":nccl") else super().devices(name)

    def missing(self, name: str, device: Device = "cpu") -> str | None:
        return super().missing(name, "cuda" if name.endswith(":nccl") else device)


class TrainerModule(Protocol):
    """The module that a worker loads. Its import imports the framework, timed apart from connecting."""

    def connect(self, task: Task) -> Trainer:
        """Join the exchange, build the model and the optimiser."""


class ServerModule(Protocol):
    """The module that a helper loads."""

    def serve(self, task: Task, announce: Callable[[dict[str, str]], None]) -> None:
        """Serve `task.role`. Call `announce({...})` once it can be reached. It need not return."""


class Exchange(Record, frozen=True, kw_only=True):
    """How forecasts (predict/) model the exchange of a mode, in the words of `setting.py` there.

    * method: that of modes with parameter servers is found in the run.
    * by_nccl: NCCL carries it on GPUs.
    """

    method: Literal["ring", "sharded", "servers_apart", "servers_beside"] = "ring"
    overlap: Literal["backward", "mwms"] = "backward"
    messages: Literal["tensors", "buckets"] = "tensors"
    by_nccl: bool = False


class Framework(Record, frozen=True, kw_only=True):
    """Everything that the package must know of a framework before it loads a strategy. Its folder declares it.

    Modes
      strategies: by mode, the module of the folder with its class; in the order of --list
      aliases: other names of a mode
      meant: by a word that users write for a mode, the strategies that it may mean
      any_mode: every mode is the plain loop, and none is listed
      defaults: by device, the mode that is measured without --strategy
      own_models: its strategies train models of users' files (outside.Model)
      mode_flag: a flag of `run` that takes its modes as its users name them
      exchanges: by mode, how forecasts model its exchange; "" is for all other modes

    Workers
      startup_s: seconds until a fresh worker is ready, mostly importing; for --dry-run
      preload: modules that a fork server imports; empty if workers cannot be forked
      forks_on: devices whose workers can be forks: importing these modules must not initialise such a device
      preload_environ: environment variables of the fork server and its forks
      shares_gpus: its workers give back GPU memory while others have their turn (`Able.release_memory`)
      sees_one_gpu: a worker of one device is shown no other GPU, because the framework uses GPU 0 as well
      returns_early: devices on which a step returns before it is done and no device clock times it
      resident_bytes: estimated memory of a worker without a model
      kernels_up_to: compute capability of the newest GPUs that its packages have kernels for
      translation_s: seconds that the driver takes to compile all kernels for newer GPUs
      compiler: what compiles kernels during training with --compile
      compiler_lacks: what the compiler needs and does not find in a given environment

    Installation
      distributions: by package, its distribution names; their versions are in a run's header
      essential: packages that need the same version on all nodes
      built_for_cuda: the CUDA release that it is built with, "" for none, None if it is not installed; imports
        nothing
      preflight: the module whose process measures for `check`: a device alone, or all-reduces over the modes in
        `defaults`

    Environment variables, as patterns that match from the start of a name
      variables: they change rates and are recorded
      own_variables: strategies set them for each process, and the user's values are dropped
      corrected: by name, a pattern in values that workers fail with, its replacement and the reason

    Report
      explained: by label, text of "How to read" below a table with its rows
    """

    name: str
    strategies: dict[str, str]
    aliases: dict[str, str] = {}
    meant: dict[str, str] = {}
    any_mode: bool = False
    defaults: dict[Device, str] = {}
    own_models: bool = False
    mode_flag: str = ""
    exchanges: dict[str, Exchange] = {}
    startup_s: float = 3.0
    preload: tuple[str, ...] = ()
    forks_on: tuple[Device, ...] = ("cpu", "emulated")
    preload_environ: dict[str, str] = {}
    shares_gpus: bool = False
    sees_one_gpu: bool = False
    returns_early: tuple[Device, ...] = ()
    resident_bytes: int = 10**9
    kernels_up_to: tuple[int, int] | None = None
    translation_s: float = 0.0
    compiler: str = ""
    compiler_lacks: Callable[[Mapping[str, str]], str] = lambda _: ""
    distributions: dict[str, tuple[str, ...]] = {}
    essential: tuple[str, ...] = ()
    built_for_cuda: Callable[[], str | None] = lambda: None
    preflight: str = ""
    variables: str = ""
    own_variables: str = ""
    corrected: dict[str, tuple[str, str, str]] = {}
    explained: dict[str, str] = {}

    def forks(self, device: Device, *, fresh: bool) -> bool:
        """Return whether workers on this device are forks; `fresh`: --fresh-workers forbids it."""
        return not fresh and bool(self.preload) and device in self.forks_on

    def exchange(self, mode: str) -> Exchange:
        return self.exchanges.get(mode) or self.exchanges.get("", Exchange())


# All that a training to an accuracy may ask of a trainer (abilities.EVALUATING).
SKILLS: tuple[Skill, ...] = ("evaluate", "rate", "statistics")
# The package's own plain loops.
PASSES = Traits(passes=("forward", "backward", "step"), accuracy=("evaluate", "rate"))

# The agent ends a hung point first, and so finds its cause. A framework's timeout comes this much later.
TIMEOUT_MARGIN_S = 30.0


def timeout_s(clocks: Clocks) -> float:
    """Return the timeout of a framework's own waits, in seconds. It is longer than the agent's clocks. These stop
    while other points have their turn; a framework's clock does not."""
    return max(clocks.startup_s, clocks.stall_s, clocks.deadline_s) + TIMEOUT_MARGIN_S


TRUE = ("1", "true", "yes", "on")
FALSE = ("0", "false", "no", "off")


def read_options(known: Mapping[str, Option], given: Mapping[str, str]) -> dict[str, Any]:
    """Return all options of a strategy: the given value, else the default. Raises UsageError for an unknown key
    (with the nearest match) or a value of another type."""
    for key in given:
        if key not in known:
            raise UsageError(f"--option {key}={given[key]}: unknown; {near(key, known)}")
    return {
        key: _parse(key, option, given[key]) if key in given else option.default for key, option in known.items()
    }


def read_own_options(known: Mapping[str, Option], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of `known`, as `read_options` does; other options that a point carries are ignored."""
    return read_options(known, {key: text for key, text in given.items() if key in known})


def _parse(key: str, option: Option, text: str) -> Any:
    if option.type is bool:
        if text.lower() in TRUE + FALSE:
            return text.lower() in TRUE
        raise UsageError(f"--option {key}={text}: expected true or false")
    try:
        return option.type(text)
    except ValueError:
        raise UsageError(f"--option {key}={text}: expected {option.type.__name__.replace('_', ' ')}") from None


# ---------------------------------------------------------------- what strategies and trainers return


def declared(*kinds: type) -> dict[str, Any]:
    """Return the types of attributes and of the results of methods, by name."""
    found: dict[str, Any] = {}
    for kind in kinds:
        found |= get_type_hints(kind)
        for name, each in vars(kind).items():
            if inspect.isfunction(told := each.fget if isinstance(each, property) else each):
                found[name] = get_type_hints(told).get("return")
    return found


def typed(name: str, what: str, value: Any, wanted: Any) -> Any:
    """Return the value converted to the wanted type. Raises StrategyError: code from outside returns anything."""
    try:
        found = msgspec.convert(value, wanted)
        if wanted in (Traits, list[Helper]):  # msgspec does not check an existing Struct
            found = msgspec.convert(msgspec.to_builtins(found), wanted)
    except (TypeError, msgspec.ValidationError) as error:
        raise StrategyError(name, f"{what} is of a wrong type: {error}", error) from error
    return found
