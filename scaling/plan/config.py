"""SweepConfig: the fields of a run.

Each field is declared once, with its `Flag`. The flag and its help, the key of a `--config` file, the messages and
the bounds are derived from it. `plan/validation.py` checks values; `plan/rules.py` replaces defaults of None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import fields as declared

from scaling.errors import UsageError, not_one_of
from scaling.records.point import (
    BatchRule,
    Feed,
    Kind,
    LrScale,
    MemoryFormat,
    Optimizer,
    Pass,
    Placement,
    Precision,
    Record,
    ServerHosts,
    Unit,
)
from scaling.records.task import Malloc

# ---------------------------------------------------------------- fields

COMMAND_LINE = "command line"
# The types of a file, as users know them.
TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "array": "a list"}
# The kind of run that a field belongs to; "" for all. With --epochs, any value of a field of `rates` is refused,
# and the flag of a field of `measuring`.
Topic = Literal["", "training", "rates", "measuring", "emulated devices", "cpu workers", "scripts"]


class Flag(NamedTuple):
    """The help of a field and the values that it may have.

    `usual`: whether the short help shows it.
    `words`: describes a field that takes a number or a word.
    `example`: ends the message about an empty list; `ascending` names one item of a sorted list.
    `above`: exclusive lower bound; `least`, `most`: inclusive bounds; `bound` is the message.
    `displaces`: fields whose values from a file or an older run this one resets.
    `repeats`: whether each use of the flag adds one item to a list.
    """

    help: str
    panel: str
    usual: bool = False
    metavar: str | None = None
    default: str = ""
    choices: tuple[str, ...] = ()
    words: str = ""
    example: str = ""
    ascending: str = ""
    above: float | None = None
    least: float | None = None
    most: float = math.inf
    bound: str = ""
    of: Topic = ""
    displaces: tuple[str, ...] = ()
    repeats: bool = False


class Field(NamedTuple):
    """A field of a configuration: its name in Python, its key in files, the types of its value without None. If
    `is_list`, the types are of its items, which commas separate in its flag."""

    name: str
    key: str
    types: tuple[Any, ...]
    is_list: bool
    default: Any
    flag: Flag

    @property
    def metavar(self) -> str:
        """What its flag takes, as help texts show it."""
        usual = "SECONDS" if self.key.endswith("_s") else "N" if int in self.types else "NAME"
        return self.flag.metavar or usual

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it takes; empty if it takes any."""
        literals = (one for one in self.types if get_origin(one) is Literal)
        return self.flag.choices or tuple(word for one in literals for word in get_args(one))

    def read(self, value: Any) -> Any:
        """Convert a command-line value to its form in files. Raises UsageError for a wrong list of numbers."""
        if isinstance(value, tuple):
            return list(value)
        if not isinstance(value, str) or not (self.is_list or int in self.types):
            return value
        kind = int if int in self.types else str
        try:
            return [kind(word) for word in words(value)] if self.is_list else int(value)
        except ValueError:
            if self.is_list:
                raise UsageError(f"{flag(self.key)} {value}: not numbers; write for example 1,2,4") from None
            return value  # a word is checked later


def words(text: str) -> list[str]:
    """Split a comma-separated list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def flag(field: str) -> str:
    """Return the command-line spelling of a field."""
    return "--" + field.replace("_", "-")


@cache
def fields_of(config: type[msgspec.Struct]) -> Mapping[str, Field]:
    """Return the fields of a configuration by key, in order."""
    hints = get_type_hints(config, include_extras=True)
    found = {}
    for one in declared(config):
        kind, said = get_args(hints[one.name])
        types = [*get_args(kind)] if get_origin(kind) in (Union, UnionType) else [kind]
        types = [each for each in types if each is not type(None)]
        items = [get_args(each)[0] for each in types if get_origin(each) is tuple]
        found[one.encode_name] = Field(
            one.name, one.encode_name, tuple(items or types), bool(items), one.default, said
        )
    return found


# ---------------------------------------------------------------- the configuration

KINDS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "train")

WHAT, HOW, TRAINING = "What to measure", "How to measure", "Training to an accuracy"
LIMITS, OUT = "Time limits", "Output"
_what, _how = partial(Flag, panel=WHAT), partial(Flag, panel=HOW)
_train = partial(Flag, panel=TRAINING, of="training")
_limit, _out = partial(Flag, panel=LIMITS), partial(Flag, panel=OUT)
# The help of --fabric, also of scaling check.
FABRIC_FILE = "TOML file that names networks: interface, subnet, hca, rate_gbit (hostfiles/fabric.toml)."
_OF_DATA = ("feed", "feed_workers", "drop_caches", "train_samples", "test_samples")
MAX_SEED = 1 << 32
RENAMED = {"pass_": "pass", "for_": "for"}


class SweepConfig(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=RENAMED):
    """The settings of a run. Lists are tuples. None means: chosen from the devices of the launch."""

    # fmt: off
    strategy: Annotated[tuple[str, ...] | None, _what(
        "How gradients are exchanged; see --list.", usual=True, metavar="NAME,...",
        default="torch:nccl with GPUs, else torch:gloo", example="torch:gloo")] = None
    world_sizes: Annotated[tuple[int, ...] | None, _what(
        "Numbers of devices to measure, ascending.", usual=True, metavar="N,...",
        default="1, 2, 4, ... and the launch's size", example="1,2,4", ascending="a world size")] = None
    script: Annotated[str | None, _what(
        "Measure this training, unchanged: everything after -- is the same. {devices}, {rank} and {out} (a "
        "folder of the point) are replaced in its arguments.", usual=True, metavar="'FILE ARGS'",
        default="none: measure models of --model",
        displaces=("label", "unit", "samples_per_step", "in_place", "world_sizes"))] = None
    label: Annotated[str | None, _what(
        "Name of the script in tables.", default="its file", of="scripts")] = None
    unit: Annotated[Unit | None, _what(
        "What a script's samples are called; tokens counts tokens.", default="samples", of="scripts")] = None
    samples_per_step: Annotated[int | None, _what(
        "Samples of a rank's step.", default="counted in its loaders", least=1, of="scripts")] = None
    in_place: Annotated[bool, _what(
        "Run the script in the working directory; by default each point runs in a copy.",
        of="scripts")] = False
    kinds: Annotated[tuple[Kind, ...] | None, _what(
        "What to run: exchange, and the controls that explain it: solo, each, together, comm, feed and held. "
        "feed (the data pipelines alone) and held (plain loops on a batch that stays on the device) show the "
        "time spent waiting for data.", metavar="KIND,...",
        default="all; feed and held with data that is decoded from files", choices=KINDS,
        of="measuring")] = None
    pass_: Annotated[tuple[Pass, ...], _what(
        "What to time: forward (in training mode), backward (forward and backward) or step (both, the "
        "exchange and the update). The first two run on one device, by torch:plain, tensorflow:plain, "
        "mxnet:plain.", metavar="PASS,...", example="forward,backward",
        displaces=("strategy", "world_sizes"))] = ("step",)
    model: Annotated[str | None, _what(
        "Model to train, see --list, or FILE:NAME for your own.", usual=True, metavar="NAME",
        default="resnet50 with GPUs, else digits-cnn",
        displaces=("data", "data_dir", *_OF_DATA, "batch_size", "batch_sizes", "shrink", "dilate"))] = None
    data: Annotated[str | None, _what(
        "Data to train on; see --list.", usual=True, metavar="NAME", default="the model's",
        displaces=("data_dir", *_OF_DATA))] = None
    data_dir: Annotated[str | None, _what(
        "Folder of your copy of the data, on every host, in its published format; see --list. Nothing is "
        "downloaded.", metavar="DIR", default="where the system's packages put it")] = None
    feed: Annotated[Feed, _what(
        "Pipeline that decodes picture files: reference (the same for all frameworks) or native (torch's "
        "DataLoader, tf.data, MXNet's ImageRecordIter).", metavar="reference|native",
        displaces=("feed_workers",))] = "reference"
    feed_workers: Annotated[int | None, _what(
        "Processes (torch) or threads of each rank's native feed.", metavar="N",
        default="as many as the rank has cores", above=0)] = None
    drop_caches: Annotated[bool, _what(
        "Drop the data's files from the page cache before "
        "each point, so that they are read from disk.")] = False
    device: Annotated[str, _what(
        "cpu, cuda, auto (cuda if every host has GPUs), or emulated:PROFILE, which sleeps as long as a "
        "published device would compute; see --list.", usual=True, metavar="KIND",
        displaces=("model", "data", "data_dir", *_OF_DATA, "batch_size", "batch_sizes", "strategy", "shrink",
            "dilate", "baseline_device"))] = "auto"
    baseline_device: Annotated[Literal["cpu"] | None, _what(
        "cpu: train on all cores of the first host too, and report how many times faster the GPUs are.",
        metavar="cpu", of="rates")] = None
    shrink: Annotated[float | None, _how(
        "Divide bytes and link rates of emulated devices by K; the table multiplies them back.", metavar="K",
        default="chosen, so that most of this machine stays idle", of="emulated devices", least=1)] = None
    dilate: Annotated[float | None, _how(
        "Multiply all times of emulated devices by D; the table divides them back.", metavar="D",
        default="chosen, so that most of this machine stays idle", of="emulated devices", least=1)] = None
    batch_size: Annotated[int | None, _what(
        "Samples per device and step; per node with --batch-rule node.", usual=True,
        default="the model's; on GPUs 256, 128 or 64 for resnet50 by memory, for text by a trial step",
        above=0, displaces=("global_batch_size", "batch_sizes"))] = None
    batch_sizes: Annotated[tuple[int, ...] | None, _what(
        "Measure each of these batches per device, against its own baselines. The table shows the gain of a "
        "larger batch and which batches ran out of memory.", metavar="B,...", example="16,32,64",
        ascending="a batch", displaces=("batch_size", "global_batch_size", "batch_rule"))] = None
    global_batch_size: Annotated[int | None, _what(
        "Samples of a step over all devices: strong scaling.", above=0,
        displaces=("batch_size", "batch_sizes", "batch_rule"))] = None
    batch_rule: Annotated[BatchRule | None, _what(
        "What stays fixed as devices are added: the batch of a device (weak), of all devices (strong), or of "
        "a node, shared by its devices in use (node).", metavar="NAME",
        default="weak; strong with --global-batch-size",
        displaces=("global_batch_size", "batch_sizes"))] = None
    precision: Annotated[Precision | None, _what(
        "fp32, tf32, bf16 or fp16.", metavar="NAME",
        default="fp32; on GPUs bf16 from compute capability 8.0 "
                "on, fp16 with 7.x, where all strategies can")] = None
    memory_format: Annotated[MemoryFormat | None, _what(
        "Memory format of images: contiguous or channels_last.", metavar="NAME",
        default="contiguous; channels_last with half precision on GPUs, where all strategies can")] = None
    compile: Annotated[bool, _what("Compile the model: torch.compile, TensorFlow's XLA.")] = False
    image_size: Annotated[int | None, _what(
        "Height and width of the images.", metavar="PIXELS", default="the model's own", above=0)] = None
    sequence_length: Annotated[int | None, _what(
        "Tokens of a sequence.", metavar="N", default="the model's own", above=0)] = None
    optimizer: Annotated[Optimizer | None, _what(
        "sgd (momentum 0.9), rmsprop, adadelta, adam or adamw.", metavar="NAME",
        default="the model's, see --list")] = None
    epochs: Annotated[int | None, _train(
        "Train for N epochs and report top-1 on held-out data after each; rates are not measured. There is "
        "one training per strategy, world size, batch, rule and seed.", metavar="N",
        default="none: measure rates", least=1, of="")] = None
    target_top1: Annotated[float | None, _train(
        "Stop at this top-1 and report the seconds of training until then.", metavar="PERCENT",
        default="none: all epochs", least=1, most=100,
        bound="in percent, from 1 to 100; write for example 98")] = None
    lr: Annotated[float | None, _train(
        "Learning rate of one device at its batch.", metavar="RATE",
        default="the model's, at the model's batch; see --list", above=0)] = None
    lr_scale: Annotated[tuple[LrScale, ...] | None, _train(
        "How the rate grows with the batch of all devices: linear, sqrt, none; several rules mean several "
        "trainings.", metavar="RULE,...", default="linear for sgd, none for adadelta, else sqrt",
        example="linear or linear,none")] = None
    warmup_epochs: Annotated[int | None, _train(
        "Epochs in which the rate grows from its unscaled value.", metavar="N", default="0", least=0)] = None
    lr_steps: Annotated[tuple[int, ...] | None, _train(
        "Epochs before which the rate is divided by 10.", metavar="N,...")] = None
    augment_epochs: Annotated[int | None, _train(
        "Rotate, shift, shear, enlarge or mirror the images of the last N epochs, as the data allows.",
        metavar="N", default="0", least=0)] = None
    weights: Annotated[str | None, _train(
        "Start from these weights: .safetensors or .npz, on every host. If their classes differ, the "
        "last layer is drawn by the seed.", metavar="FILE", default="drawn by the seed")] = None
    seeds: Annotated[tuple[int, ...] | None, _train(
        "Train once per seed (of weights and order) and report the mean.", metavar="N,...",
        default="--seed's")] = None
    train_samples: Annotated[int | None, _train(
        "Train on N samples of the data, always the same, with classes as equal as possible.", metavar="N",
        default="all", least=1)] = None
    test_samples: Annotated[int | None, _train(
        "Evaluate on N held-out samples, chosen in the same way.", metavar="N", default="all",
        least=1)] = None
    save_weights: Annotated[str | None, _train(
        "Save the trained weights to this .npz or .safetensors, for --weights, on the host of the training's "
        "rank 0. Needs a run of one training.", metavar="FILE", default="not kept")] = None
    option: Annotated[tuple[str, ...], _what(
        "[STRATEGY.]KEY=VALUE; repeatable; see --list.", usual=True, metavar="K=V", repeats=True)] = ()
    placement: Annotated[Placement, _how(
        "pack fills one node after the other, spread deals ranks out over the nodes.",
        metavar="HOW")] = "pack"
    servers: Annotated[int | Literal["per-node"], _how(
        "Parameter servers of a point, if its strategy has them.", usual=True, metavar="N|per-node", least=1,
        bound="at least 1, or per-node", words="a number or per-node")] = "per-node"
    server_hosts: Annotated[ServerHosts, _how(
        "shared: servers run on training nodes; dedicated: on nodes that the point leaves free, if any.",
        metavar="HOW")] = "shared"
    interconnect: Annotated[tuple[str, ...], _how(
        "Networks to measure: names in the fabric file, interfaces or subnets; auto: the fastest that all "
        "nodes share.", usual=True, metavar="NAME,...", example="ib0,eth0, or auto")] = ("auto",)
    fabric: Annotated[str | None, _how(
        FABRIC_FILE, metavar="FILE", default="SCALING_FABRIC, else none")] = None
    cpus_per_rank: Annotated[int | None, _how(
        "Cores of each rank, at every world size.", default="cores / local ranks, at least 1",
        above=0)] = None
    interleave: Annotated[bool | None, _how(
        "Points take turns, window by window, so that slow phases of the machine affect all equally; or run "
        "one after the other.",
        default="taking turns on CPUs, and on GPUs whose workers give back memory, as far as it fits",
        of="measuring")] = None
    rounds: Annotated[int | None, _how(
        "Starts of every point, in random order.", usual=True,
        default="6 if points take turns, 5 of over 20 points; on GPUs 3, of up to 4 points 4; else 5",
        above=0, displaces=("for",))] = None
    for_: Annotated[str | None, _how(
        "Burn-in: add rounds until this time is over, two at least. The page shows step times, drift, "
        "throttling and link errors over time.", metavar="30m|2h|7d", default="none: the rounds of --rounds",
        of="rates", displaces=("rounds", "target_ci", "max_rounds"))] = None
    windows: Annotated[int | None, _how(
        "Timed windows of each point and round.",
        default="5 to 12 (as many as last 1.15 s) if points take turns, on GPUs 3; else 5", least=3,
        bound="at least 3 are needed", of="measuring")] = None
    window_s: Annotated[float | None, _how(
        "Least seconds of a window.",
        default="0.1 if points take turns, MXNet's and those on GPUs 0.3; else 0.5", above=0,
        of="measuring")] = None
    warm_up_s: Annotated[float | None, _how(
        "Least seconds of training before the first window. Then steps and clocks of GPUs must be steady.",
        default="on GPUs 3, for all points that take turns together; else until steps are steady", least=0,
        of="measuring")] = None
    soak_s: Annotated[float | None, _how(
        "Seconds that exchanges train on after the first round's windows, to test whether the efficiency "
        "lasts.", default="a fifth of the planned time, at most 12, if points take turns; else 0", least=0,
        of="measuring")] = None
    trace: Annotated[bool, _how(
        "Profile five more steps of each cell (not counted) into files for https://ui.perfetto.dev.")] = False
    target_ci: Annotated[str | None, _how(
        "Add rounds until the half-width of every efficiency's 95 % interval is below this.", usual=True,
        metavar="1%", of="rates", displaces=("for",))] = None
    max_rounds: Annotated[int, _how("Most rounds that --target-ci may reach.", above=0, of="measuring")] = 20
    seed: Annotated[int, _how(
        "Seed of the order, the weights and the data.", least=0, most=MAX_SEED - 1,
        bound=f"from 0 to {MAX_SEED - 1}")] = 1
    malloc: Annotated[Malloc, _how(
        "keep: CPU workers keep freed memory, which they may otherwise fault in again in each step. system: "
        "the C library decides.", metavar="keep|system", of="cpu workers")] = "keep"
    fresh_workers: Annotated[bool, _how(
        "Start each worker fresh, not as a fork of a process that has imported its framework.")] = False
    startup_timeout_s: Annotated[float | None, _limit(
        "Seconds until a worker must be ready, and for its first step.",
        default="300, on GPUs 600; twice that with --compile; 2700 for TensorFlow on GPUs newer than it is",
        above=0)] = None
    stall_timeout_s: Annotated[float, _limit("Seconds that a worker may be silent.", above=0)] = 120.0
    point_timeout_s: Annotated[float | None, _limit(
        "Seconds that a point may take in total.", default="1800, plus --startup-timeout-s beyond 300",
        above=0)] = None
    results: Annotated[str, _out("Folder of all runs.", metavar="DIR")] = "results"
    name: Annotated[str, _out("Last part of the run's folder name.")] = "sweep"
    anonymous: Annotated[bool, _out(
        "Print and draw no names of hosts, other programs, users and folders; run.jsonl keeps them.")] = False
    # fmt: on

    @property
    def rule(self) -> BatchRule:
        """The batch rule; without --batch-rule it follows from the batch flags."""
        return self.batch_rule or ("weak" if self.global_batch_size is None else "strong")

    @property
    def has_passes(self) -> bool:
        """Whether only parts of a step are measured, without any exchange."""
        return self.pass_ != ("step",)


# The names of the fields in files; in Python, `pass` and `for` end with `_`.
FIELDS: tuple[str, ...] = SweepConfig.__struct_encode_fields__


def build(data: dict[str, Any], *, source: str, of: type[SweepConfig] = SweepConfig) -> SweepConfig:
    """Convert plain data to a SweepConfig. Raises UsageError with `source` and the key of a wrong value."""
    try:
        return msgspec.convert(data, of)
    except msgspec.ValidationError as error:
        raise UsageError(refusal(str(error), data, source, fields_of(of))) from None


def refuse(mistakes: Iterable[str]) -> None:
    """Raise UsageError with the first of these mistakes, if there is one."""
    for mistake in mistakes:
        raise UsageError(mistake)


def refusal(message: str, data: Mapping[str, Any], source: str, known: Mapping[str, Field]) -> str:
    """Turn msgspec's "Expected `int`, got `str` - at `$.rounds`" into a message with the flag or key first."""
    what, _, path = message.replace(" | null", "").partition(" - at ")
    key = path.strip("`").removeprefix("$.").removeprefix("$")
    name = key.split("[")[0]
    given, field = data.get(name), known.get(name)
    where = flag(name) if source == COMMAND_LINE and name else f"{source}: {key}" if key else source
    if field is None:
        return f"{where}: {what.lower() if key else what}"
    if field.flag.words:
        return f"{where}: {given!r} is not {field.flag.words}"
    if not what.startswith("Invalid enum value"):
        expected = re.sub(r"`(\w+)`", lambda found: TYPES.get(found[1], found[1]), what.lower())
        return f"{where}: {expected}"
    several = [given] if isinstance(given, str) else [word for word in given or () if isinstance(word, str)]
    wrong = next((word for word in several if word not in field.choices), several[0] if several else "")
    return f"{where}: {not_one_of(wrong, field.choices)}"
