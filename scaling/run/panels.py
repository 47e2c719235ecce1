"""The flags of a run that say what is measured and how, by the panel of `--help` in which each stands: its type,
its help, its metavar. The others stand in run_panels.py."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

WHAT, HOW = "What to measure", "How to measure"
_what = partial(typer.Option, rich_help_panel=WHAT)
_how = partial(typer.Option, rich_help_panel=HOW)

# ---------------------------------------------------------------- what to measure

Strategy = Annotated[
    str | None,
    _what(
        help="How gradients are exchanged, comma-separated; see --list.",
        metavar="NAME,...",
        show_default="torch:nccl with GPUs, else torch:gloo",
    ),
]
KvStore = Annotated[
    str | None,
    _what(
        help="kvstores as MXNet names them: dist_sync,device is --strategy mxnet:dist_sync,mxnet:device.",
        metavar="MODE,...",
        show_default="none",
    ),
]
WorldSizes = Annotated[
    str | None,
    _what(
        help="Devices that take part, ascending.",
        metavar="N,...",
        show_default="1, 2, 4, ... and the launch's size",
    ),
]
Kinds = Annotated[
    str | None,
    _what(
        help="Which runs: exchange is measured; solo, each, together, comm, feed and held are the controls that "
        "explain it, the last two (the data pipelines alone, plain loops on a batch that stays on the device) how "
        "long is waited for data.",
        metavar="KIND,...",
        show_default="all; feed and held with data that is decoded from files",
    ),
]
Pass = Annotated[
    str,
    _what(
        "--pass",
        help="What a step does: forward, in training mode; backward, forward and backward; step, those with the "
        "exchange and the update. Without exchange: on one device, by torch:plain, tensorflow:plain, mxnet:plain.",
        metavar="PASS,...",
    ),
]
Model = Annotated[
    str | None,
    _what(help="What is trained; see --list.", metavar="NAME", show_default="resnet50 with GPUs, else digits-cnn"),
]
Data = Annotated[
    str | None, _what(help="What it is fed with; see --list.", metavar="NAME", show_default="the model's own")
]
DataDir = Annotated[
    str | None,
    _what(
        help="Where your copy of the data lies, on every host and in its published format; see --list. Nothing is "
        "fetched.",
        metavar="DIR",
        show_default="where packages of the system put it",
    ),
]
Feed = Annotated[
    str,
    _what(
        help="What decodes pictures in files: reference, one pipeline for all frameworks, or native, each "
        "framework's own (torch's DataLoader, tf.data, MXNet's ImageRecordIter).",
        metavar="reference|native",
    ),
]
FeedWorkers = Annotated[
    int | None,
    _what(
        help="Processes (torch) or threads of each rank's native feed.",
        metavar="N",
        show_default="as many as the rank has cores",
    ),
]
DropCaches = Annotated[
    bool,
    _what(help="Drop the data's files from the page cache before each point, so that they are read from disk."),
]
Device = Annotated[
    str,
    _what(
        help="cpu, cuda, auto (cuda where every host has GPUs), or emulated:PROFILE, which sleeps as long as "
        "a published device computes; see --list.",
        metavar="KIND",
    ),
]
BaselineDevice = Annotated[
    str | None,
    _what(
        help="cpu: beside GPUs train on all cores of the first host, and say how many times as fast GPUs are.",
        metavar="cpu",
        show_default="none",
    ),
]
BatchSize = Annotated[
    int | None,
    _what(
        help="Samples per device and step: weak scaling; with --batch-rule node, per node.",
        show_default="the model's; 32 for digits-cnn, on GPUs 256, 128 or 64 for resnet50, by their memory",
    ),
]
BatchSizes = Annotated[
    str | None,
    _what(
        help="Measure each of these batches per device, against its own baselines; the table then says what a "
        "larger batch gains, and which ran out of memory.",
        metavar="B,...",
        show_default="none",
    ),
]
GlobalBatchSize = Annotated[
    int | None, _what(help="Samples of a step over all devices: strong scaling.", show_default="none")
]
BatchRule = Annotated[
    str | None,
    _what(
        help="What stays as devices grow: the batch of a device (weak), of all (strong), or of a node, whose "
        "devices in use share it (node).",
        metavar="NAME",
        show_default="weak; strong with --global-batch-size",
    ),
]
Precision = Annotated[
    str | None,
    _what(
        help="fp32, tf32, bf16 or fp16.",
        metavar="NAME",
        show_default="fp32; on GPUs bf16 from compute capability 8.0 on, fp16 with 7.x, where all strategies can",
    ),
]
MemoryFormat = Annotated[
    str | None,
    _what(
        help="Of images: contiguous or channels_last.",
        metavar="NAME",
        show_default="contiguous; channels_last with half precision on GPUs, where all strategies can",
    ),
]
Compile = Annotated[bool, _what(help="Compile the model: torch.compile, TensorFlow's XLA.")]
ImageSize = Annotated[
    int | None, _what(help="Height and width of the images.", metavar="PIXELS", show_default="the model's own")
]
SequenceLength = Annotated[
    int | None, _what(help="Tokens of a sequence.", metavar="N", show_default="the model's own")
]
Optimizer = Annotated[
    str | None,
    _what(
        help="sgd (momentum 0.9), rmsprop, adadelta, adam or adamw.",
        metavar="NAME",
        show_default="the model's, see --list",
    ),
]
Option = Annotated[
    list[str] | None,
    _what(
        help="[STRATEGY.]KEY=VALUE: a knob of a strategy; repeat for more; see --list.",
        metavar="K=V",
        show_default="none",
    ),
]

# ---------------------------------------------------------------- how to measure

Shrink = Annotated[
    float | None,
    _how(
        help="Of emulated devices: divide bytes and link rates by this; undone in the table.",
        metavar="K",
        show_default="chosen, so that most of this machine stays idle",
    ),
]
Dilate = Annotated[
    float | None,
    _how(
        help="Of emulated devices: multiply all times by this; undone in the table.",
        metavar="D",
        show_default="chosen, so that most of this machine stays idle",
    ),
]
Placement = Annotated[
    str, _how(help="pack fills one node after the other, spread deals ranks out over the nodes.", metavar="HOW")
]
Servers = Annotated[
    str, _how(help="Parameter servers of a point, for the strategies that have them.", metavar="N|per-node")
]
ServerHosts = Annotated[
    str,
    _how(
        help="shared with the training, or dedicated: nodes that a point leaves free, while it leaves any.",
        metavar="HOW",
    ),
]
Interconnect = Annotated[
    str,
    _how(
        help="Networks to measure over: names of the fabric file, interfaces, subnets; auto: the fastest "
        "that all nodes share.",
        metavar="NAME,...",
    ),
]
Fabric = Annotated[
    str | None,
    _how(
        help="TOML file that names networks: interface, subnet, hca, rate_gbit (hostfiles/fabric.toml).",
        metavar="FILE",
        show_default="SCALING_FABRIC, else none",
    ),
]
CpusPerRank = Annotated[
    int | None,
    _how(help="Cores of each rank, at every world size.", show_default="cores / local ranks, at least 1"),
]
Interleave = Annotated[
    bool | None,
    _how(
        help="Points live side by side and take turns, window by window, which beats a machine that wanders; "
        "or one after the other.",
        show_default="side by side on CPUs, as far as memory allows",
    ),
]
Rounds = Annotated[
    int | None,
    _how(help="Times that every point is started and measured, shuffled.", show_default="6 side by side, else 5"),
]
Windows = Annotated[
    int | None,
    _how(
        help="Timed windows of each point and round.",
        show_default="side by side 5 to 12, as many as last 1.15 s, else 5",
    ),
]
WindowS = Annotated[
    float | None,
    _how(
        help="Seconds that a window lasts at least.",
        show_default="side by side 0.1, with MXNet or GPUs 0.3; else 0.5, on GPUs 1",
    ),
]
SoakS = Annotated[
    float | None,
    _how(
        help="Seconds that exchanges train on after the first round's windows, to see whether these last.",
        show_default="side by side a fifth of the time planned, at most 12; else 0",
    ),
]
Trace = Annotated[
    bool,
    _how(help="Profile five more steps of each cell, in no figure, into files for https://ui.perfetto.dev."),
]
TargetCi = Annotated[
    str | None,
    _how(
        help="Add rounds until half of every efficiency's 95 % interval is below this.",
        metavar="1%",
        show_default="none",
    ),
]
MaxRounds = Annotated[int, _how(help="Rounds that --target-ci may reach.")]
PredictFirst = Annotated[
    str | None,
    _how(
        help="Measure world sizes up to N in all rounds, write down what the larger ones will do, then measure "
        "them: the report has both beside each other. half: of the largest.",
        metavar="N|half",
        show_default="none",
    ),
]
Seed = Annotated[int, _how(help="Of the order, the weights and the data.")]

Malloc = Annotated[
    str,
    _how(
        help="keep has the C library keep freed memory in CPU workers, which else fault it in again in each step, "
        "or not, as it happens; system leaves it as it is.",
        metavar="keep|system",
    ),
]
FreshWorkers = Annotated[
    bool,
    _how(help="Start each worker from nothing, and not as a fork of a process that has imported its framework."),
]
