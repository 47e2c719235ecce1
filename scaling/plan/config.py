"""SweepConfig: the fields of a run, and how a `--config` file is read.

Each field is declared once, with its `Flag`. Flags, file keys and value checks are all derived from it.
`plan/plan.py` checks what depends on the hosts and replaces defaults of None.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from scaling import files
from scaling.errors import UsageError, near
from scaling.plan.fields import Flag, fields_of, refusal
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
)
from scaling.records.task import Malloc

KINDS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "train")
DEVICES = ("auto", "cpu", "cuda")
MAX_NAME_BYTES = 200
MAX_SEED = 1 << 32

WHAT, HOW, TRAINING = "What to measure", "How to measure", "Training to an accuracy"
LIMITS, OUT, RUNS = "Time limits", "Output", "Runs"
_what, _how = partial(Flag, panel=WHAT), partial(Flag, panel=HOW)
_train = partial(Flag, panel=TRAINING, of="training")
_limit, _out, _runs = partial(Flag, panel=LIMITS), partial(Flag, panel=OUT), partial(Flag, panel=RUNS)
# The help of --fabric, also of scaling check.
FABRIC_FILE = "TOML file that names networks: interface, subnet, hca, rate_gbit (hostfiles/fabric.toml)."
_OF_DATA = ("feed", "feed_workers", "drop_caches", "train_samples", "test_samples")


class SweepConfig(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"pass_": "pass"}):
    """The settings of a run. Lists are tuples. None means: chosen from the devices of the launch."""

    strategy: Annotated[
        tuple[str, ...] | None,
        _what(
            "How gradients are exchanged, comma-separated; see --list.",
            metavar="NAME,...",
            default="torch:nccl with GPUs, else torch:gloo",
            example="torch:gloo",
        ),
    ] = None
    world_sizes: Annotated[
        tuple[int, ...] | None,
        _what(
            "Devices that take part, ascending.",
            metavar="N,...",
            default="1, 2, 4, ... and the launch's size",
            example="1,2,4",
            ascending="a world size",
            displaces=("predict_first",),
        ),
    ] = None
    kinds: Annotated[
        tuple[Kind, ...] | None,
        _what(
            "Which runs: exchange is measured; solo, each, together, comm, feed and held are the controls that "
            "explain it, the last two (the data pipelines alone, plain loops on a batch that stays on the "
            "device) how long is waited for data.",
            metavar="KIND,...",
            default="all; feed and held with data that is decoded from files",
            choices=KINDS,
            of="measuring",
        ),
    ] = None
    pass_: Annotated[
        tuple[Pass, ...],
        _what(
            "What a step does: forward, in training mode; backward, forward and backward; step, those with the "
            "exchange and the update. Without exchange: on one device, by torch:plain, tensorflow:plain, "
            "mxnet:plain.",
            metavar="PASS,...",
            example="forward,backward",
            displaces=("strategy", "world_sizes", "predict_first"),
        ),
    ] = ("step",)
    model: Annotated[
        str | None,
        _what(
            "What is trained; see --list.",
            metavar="NAME",
            default="resnet50 with GPUs, else digits-cnn",
            displaces=("data", "data_dir", *_OF_DATA, "batch_size", "batch_sizes", "shrink", "dilate"),
        ),
    ] = None
    data: Annotated[
        str | None,
        _what(
            "What it is fed with; see --list.",
            metavar="NAME",
            default="the model's own",
            displaces=("data_dir", *_OF_DATA),
        ),
    ] = None
    data_dir: Annotated[
        str | None,
        _what(
            "Where your copy of the data lies, on every host and in its published format; see --list. Nothing "
            "is fetched.",
            metavar="DIR",
            default="where packages of the system put it",
        ),
    ] = None
    feed: Annotated[
        Feed,
        _what(
            "What decodes pictures in files: reference, one pipeline for all frameworks, or native, each "
            "framework's own (torch's DataLoader, tf.data, MXNet's ImageRecordIter).",
            metavar="reference|native",
            displaces=("feed_workers",),
        ),
    ] = "reference"
    feed_workers: Annotated[
        int | None,
        _what(
            "Processes (torch) or threads of each rank's native feed.",
            metavar="N",
            default="as many as the rank has cores",
            above=0,
        ),
    ] = None
    drop_caches: Annotated[
        bool,
        _what("Drop the data's files from the page cache before each point, so that they are read from disk."),
    ] = False
    device: Annotated[
        str,
        _what(
            "cpu, cuda, auto (cuda where every host has GPUs), or emulated:PROFILE, which sleeps as long as a "
            "published device computes; see --list.",
            metavar="KIND",
            displaces=(
                "model",
                "data",
                "data_dir",
                *_OF_DATA,
                "batch_size",
                "batch_sizes",
                "strategy",
                "shrink",
                "dilate",
                "baseline_device",
            ),
        ),
    ] = "auto"
    baseline_device: Annotated[
        Literal["cpu"] | None,
        _what(
            "cpu: beside GPUs train on all cores of the first host, and say how many times as fast GPUs are.",
            metavar="cpu",
            default="none",
            of="rates",
        ),
    ] = None
    shrink: Annotated[
        float | None,
        _how(
            "Of emulated devices: divide bytes and link rates by this; undone in the table.",
            metavar="K",
            default="chosen, so that most of this machine stays idle",
            of="emulated devices",
            least=1,
            bound="must be a number from 1",
        ),
    ] = None
    dilate: Annotated[
        float | None,
        _how(
            "Of emulated devices: multiply all times by this; undone in the table.",
            metavar="D",
            default="chosen, so that most of this machine stays idle",
            of="emulated devices",
            least=1,
            bound="must be a number from 1",
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        _what(
            "Samples per device and step: weak scaling; with --batch-rule node, per node.",
            default="the model's; 32 for digits-cnn, on GPUs 256, 128 or 64 for resnet50, by their memory",
            above=0,
            displaces=("global_batch_size", "batch_sizes"),
        ),
    ] = None
    batch_sizes: Annotated[
        tuple[int, ...] | None,
        _what(
            "Measure each of these batches per device, against its own baselines; the table then says what a "
            "larger batch gains, and which ran out of memory.",
            metavar="B,...",
            default="none",
            example="16,32,64",
            ascending="a batch",
            displaces=("batch_size", "global_batch_size", "batch_rule"),
        ),
    ] = None
    global_batch_size: Annotated[
        int | None,
        _what(
            "Samples of a step over all devices: strong scaling.",
            default="none",
            above=0,
            displaces=("batch_size", "batch_sizes", "batch_rule", "predict_first"),
        ),
    ] = None
    batch_rule: Annotated[
        BatchRule | None,
        _what(
            "What stays as devices grow: the batch of a device (weak), of all (strong), or of a node, whose "
            "devices in use share it (node).",
            metavar="NAME",
            default="weak; strong with --global-batch-size",
            displaces=("global_batch_size", "batch_sizes", "predict_first"),
        ),
    ] = None
    precision: Annotated[
        Precision | None,
        _what(
            "fp32, tf32, bf16 or fp16.",
            metavar="NAME",
            default="fp32; on GPUs bf16 from compute capability 8.0 on, fp16 with 7.x, where all strategies can",
        ),
    ] = None
    memory_format: Annotated[
        MemoryFormat | None,
        _what(
            "Of images: contiguous or channels_last.",
            metavar="NAME",
            default="contiguous; channels_last with half precision on GPUs, where all strategies can",
        ),
    ] = None
    compile: Annotated[bool, _what("Compile the model: torch.compile, TensorFlow's XLA.")] = False
    image_size: Annotated[
        int | None, _what("Height and width of the images.", metavar="PIXELS", default="the model's own", above=0)
    ] = None
    sequence_length: Annotated[
        int | None, _what("Tokens of a sequence.", metavar="N", default="the model's own", above=0)
    ] = None
    optimizer: Annotated[
        Optimizer | None,
        _what(
            "sgd (momentum 0.9), rmsprop, adadelta, adam or adamw.",
            metavar="NAME",
            default="the model's, see --list",
        ),
    ] = None
    epochs: Annotated[
        int | None,
        _train(
            "Train for so many epochs and tell top-1 on what is held out after each, in place of measuring "
            "rates; for each strategy, world size, batch, rule and seed.",
            metavar="N",
            default="none: measure rates",
            least=1,
            displaces=("predict_first",),
            of="",
        ),
    ] = None
    target_top1: Annotated[
        float | None,
        _train(
            "Stop at this top-1, and tell how many seconds of training it took.",
            metavar="PERCENT",
            default="none: all epochs",
        ),
    ] = None
    lr: Annotated[
        float | None,
        _train(
            "Learning rate of one device at its batch.",
            metavar="RATE",
            default="the model's, at the model's batch; see --list",
        ),
    ] = None
    lr_scale: Annotated[
        tuple[LrScale, ...] | None,
        _train(
            "How the rate grows with the batch of all devices: linear, sqrt, none; several are trained each.",
            metavar="RULE,...",
            default="linear for sgd, none for adadelta, else sqrt",
            example="linear or linear,none",
        ),
    ] = None
    warmup_epochs: Annotated[
        int | None,
        _train("Epochs in which the rate grows from that before scaling.", metavar="N", default="0", least=0),
    ] = None
    lr_steps: Annotated[
        tuple[int, ...] | None,
        _train("Epochs at whose beginning the rate falls to a tenth.", metavar="N,...", default="none"),
    ] = None
    augment_epochs: Annotated[
        int | None,
        _train(
            "The last so many of --epochs see images that are rotated, shifted, sheared, enlarged or mirrored, "
            "as the data allows.",
            metavar="N",
            default="0",
            least=0,
        ),
    ] = None
    weights: Annotated[
        str | None,
        _train(
            "Begin with these weights: .pth, .safetensors or .npz, on every host. Of a network with other "
            "classes the last layer begins anew.",
            metavar="FILE",
            default="drawn by the seed",
        ),
    ] = None
    seeds: Annotated[
        tuple[int, ...] | None,
        _train(
            "Train from each of these seeds, of weights and order, and tell the mean.",
            metavar="N,...",
            default="--seed's",
        ),
    ] = None
    train_samples: Annotated[
        int | None,
        _train(
            "Train on so many samples of the data, always the same, as many of each class as there can be.",
            metavar="N",
            default="all",
            least=1,
        ),
    ] = None
    test_samples: Annotated[
        int | None,
        _train("Tell top-1 of so many held-out samples, chosen likewise.", metavar="N", default="all", least=1),
    ] = None
    save_weights: Annotated[
        str | None,
        _train(
            "Write what was learnt to this .npz or .safetensors, for --weights, on the host of the training's "
            "rank 0. Of one training alone.",
            metavar="FILE",
            default="not kept",
        ),
    ] = None
    option: Annotated[
        tuple[str, ...],
        _what(
            "[STRATEGY.]KEY=VALUE: a knob of a strategy; repeat for more; see --list.",
            metavar="K=V",
            default="none",
            repeats=True,
        ),
    ] = ()
    placement: Annotated[
        Placement,
        _how("pack fills one node after the other, spread deals ranks out over the nodes.", metavar="HOW"),
    ] = "pack"
    servers: Annotated[
        int | Literal["per-node"],
        _how(
            "Parameter servers of a point, for the strategies that have them.",
            metavar="N|per-node",
            least=1,
            bound="at least 1, or per-node",
            words="a number or per-node",
        ),
    ] = "per-node"
    server_hosts: Annotated[
        ServerHosts,
        _how(
            "shared with the training, or dedicated: nodes that a point leaves free, while it leaves any.",
            metavar="HOW",
        ),
    ] = "shared"
    interconnect: Annotated[
        tuple[str, ...],
        _how(
            "Networks to measure over: names of the fabric file, interfaces, subnets; auto: the fastest that "
            "all nodes share.",
            metavar="NAME,...",
            example="ib0,eth0, or auto",
        ),
    ] = ("auto",)
    fabric: Annotated[
        str | None,
        _how(
            FABRIC_FILE,
            metavar="FILE",
            default="SCALING_FABRIC, else none",
        ),
    ] = None
    cpus_per_rank: Annotated[
        int | None,
        _how("Cores of each rank, at every world size.", default="cores / local ranks, at least 1", above=0),
    ] = None
    interleave: Annotated[
        bool | None,
        _how(
            "Points live side by side and take turns, window by window, which beats a machine that wanders; or "
            "one after the other.",
            default="side by side on CPUs, and on GPUs with PyTorch, as far as memory allows",
            of="measuring",
        ),
    ] = None
    rounds: Annotated[
        int | None,
        _how(
            "Times that every point is started and measured, shuffled.",
            default="6 side by side, on GPUs 3, of up to 4 points 4; else 5",
            above=0,
        ),
    ] = None
    windows: Annotated[
        int | None,
        _how(
            "Timed windows of each point and round.",
            default="side by side 5 to 12, as many as last 1.15 s, on GPUs 3; else 5",
            least=3,
            bound="at least 3 are needed",
            of="measuring",
        ),
    ] = None
    window_s: Annotated[
        float | None,
        _how(
            "Seconds that a window lasts at least.",
            default="side by side 0.1, with MXNet or GPUs 0.3; else 0.5",
            above=0,
            of="measuring",
        ),
    ] = None
    warm_up_s: Annotated[
        float | None,
        _how(
            "Least seconds of training before the first window. Then steps and clocks of GPUs must be steady.",
            default="on GPUs 3, for all points that take turns together; else until steps are steady",
            least=0,
            bound="must be a number from 0",
            of="measuring",
        ),
    ] = None
    soak_s: Annotated[
        float | None,
        _how(
            "Seconds that exchanges train on after the first round's windows, to see whether these last.",
            default="side by side a fifth of the time planned, at most 12; else 0",
            least=0,
            bound="must be a number from 0",
            of="measuring",
        ),
    ] = None
    trace: Annotated[
        bool, _how("Profile five more steps of each cell, in no figure, into files for https://ui.perfetto.dev.")
    ] = False
    target_ci: Annotated[
        str | None,
        _how(
            "Add rounds until half of every efficiency's 95 % interval is below this.",
            metavar="1%",
            default="none",
            of="rates",
            displaces=("predict_first",),
        ),
    ] = None
    max_rounds: Annotated[int, _how("Rounds that --target-ci may reach.", above=0, of="measuring")] = 20
    predict_first: Annotated[
        int | Literal["half"] | None,
        _how(
            "Measure world sizes up to N in all rounds, write down what the larger ones will do, then measure "
            "them: the report has both beside each other. half: of the largest.",
            metavar="N|half",
            default="none",
            least=2,
            bound="at least 2, a world size of --world-sizes",
            words="a world size or half",
        ),
    ] = None
    seed: Annotated[int, _how("Of the order, the weights and the data.")] = 1
    malloc: Annotated[
        Malloc,
        _how(
            "keep has the C library keep freed memory in CPU workers, which else fault it in again in each "
            "step, or not, as it happens; system leaves it as it is.",
            metavar="keep|system",
            of="cpu workers",
        ),
    ] = "keep"
    fresh_workers: Annotated[
        bool,
        _how(
            "Start each worker from nothing, and not as a fork of a process that has imported its framework.",
        ),
    ] = False
    against: Annotated[
        str | None,
        _runs(
            "RUN: a new run as --like, then compared with that one, cell by cell (scaling compare). REV, a git "
            "revision of this package: each strategy a second time in the same launch, its workers from there.",
            metavar="RUN|REV",
            default="none",
        ),
    ] = None
    startup_timeout_s: Annotated[
        float | None,
        _limit(
            "Seconds until a worker must be ready, and for its first step.",
            default="300, on GPUs 600; twice that with --compile; 2700 for TensorFlow on GPUs newer than it is",
            above=0,
        ),
    ] = None
    stall_timeout_s: Annotated[float, _limit("Seconds that a worker may say nothing.", above=0)] = 120.0
    point_timeout_s: Annotated[
        float | None,
        _limit(
            "Seconds that a point may take in all.",
            default="1800, and what the start may take beyond 300",
            above=0,
        ),
    ] = None
    results: Annotated[str, _out("Folder of all runs.", metavar="DIR")] = "results"
    name: Annotated[str, _out("Ends the run's folder name.")] = "sweep"

    @property
    def rule(self) -> BatchRule:
        """The batch rule; without --batch-rule it follows from the batch flags."""
        return self.batch_rule or ("weak" if self.global_batch_size is None else "strong")

    @property
    def has_passes(self) -> bool:
        """Whether only parts of a step are measured, without any exchange."""
        return self.pass_ != ("step",)


# The names of the fields in files; in Python, `pass` is `pass_`.
FIELDS: tuple[str, ...] = SweepConfig.__struct_encode_fields__


def target_half_width(config: SweepConfig) -> float | None:
    """Return `--target-ci` (`1%` or `0.01`) as a fraction; None if it is not given."""
    if config.target_ci is None:
        return None
    text = config.target_ci.strip()
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise UsageError(f"--target-ci {config.target_ci}: not a width; write 1% or 0.01")
    return value


def read_file(path: Path, of: type[SweepConfig] = SweepConfig) -> dict[str, Any]:
    """Read a TOML file of SweepConfig fields. Raises UsageError that names the wrong key or line."""
    try:
        data = msgspec.toml.decode(files.read(path))
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"--config {path}: not TOML: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"--config {path}: expected `field = value` lines")
    known = fields_of(of)
    for key in data:
        if key not in known:
            raise UsageError(f"--config {path}: unknown key {key!r}; {near(key, known)}")
    build(data, source=f"--config {path}", of=of)
    return data


def build(data: dict[str, Any], *, source: str, of: type[SweepConfig] = SweepConfig) -> SweepConfig:
    """Convert plain data to a SweepConfig. Raises UsageError with `source` and the key of a wrong value."""
    try:
        return msgspec.convert(data, of)
    except msgspec.ValidationError as error:
        raise UsageError(refusal(str(error), data, source, fields_of(of))) from None
