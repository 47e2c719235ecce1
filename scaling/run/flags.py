"""argv -> Invocation; the only file that sees argv. What each flag says of itself stands in `panels.py`
and `run_panels.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any

import typer

from scaling.command import command
from scaling.errors import UsageError
from scaling.plan import config as configuration
from scaling.plan.config import FIELDS, SweepConfig
from scaling.run import panels, run_panels
from scaling.run.invocation import Invocation, fields

# ---------------------------------------------------------------- training panels
#
# The flags of a training to an accuracy, each with its type, its help, its metavar (panels.py).


PANEL = "Training to an accuracy"
_train = partial(typer.Option, rich_help_panel=PANEL)

Epochs = Annotated[
    int | None,
    _train(
        help="Train for so many epochs and tell top-1 on what is held out after each, in place of measuring "
        "rates; for each strategy, world size, batch, rule and seed.",
        metavar="N",
        show_default="none: measure rates",
    ),
]
TargetTop1 = Annotated[
    float | None,
    _train(
        help="Stop at this top-1, and tell how many seconds of training it took.",
        metavar="PERCENT",
        show_default="none: all epochs",
    ),
]
Lr = Annotated[
    float | None,
    _train(
        help="Learning rate of one device at its batch.",
        metavar="RATE",
        show_default="the model's, at the model's batch; see --list",
    ),
]
LrScale = Annotated[
    str | None,
    _train(
        help="How the rate grows with the batch of all devices: linear, sqrt, none; several are trained each.",
        metavar="RULE,...",
        show_default="linear for sgd, none for adadelta, else sqrt",
    ),
]
WarmupEpochs = Annotated[
    int | None,
    _train(help="Epochs in which the rate grows from that before scaling.", metavar="N", show_default="0"),
]
LrSteps = Annotated[
    str | None,
    _train(help="Epochs at whose beginning the rate falls to a tenth.", metavar="N,...", show_default="none"),
]
AugmentEpochs = Annotated[
    int | None,
    _train(
        help="The last so many of --epochs see images that are rotated, shifted, sheared, enlarged or mirrored, "
        "as the data allows.",
        metavar="N",
        show_default="0",
    ),
]
Weights = Annotated[
    str | None,
    _train(
        help="Begin with these weights: .pth, .safetensors or .npz, on every host. Of a network with other "
        "classes the last layer begins anew.",
        metavar="FILE",
        show_default="drawn by the seed",
    ),
]
SaveWeights = Annotated[
    str | None,
    _train(
        help="Write what was learnt to this .npz or .safetensors, for --weights, on the host of the training's "
        "rank 0. Of one training alone.",
        metavar="FILE",
        show_default="not kept",
    ),
]
TrainSamples = Annotated[
    int | None,
    _train(
        help="Train on so many samples of the data, always the same, as many of each class as there can be.",
        metavar="N",
        show_default="all",
    ),
]
TestSamples = Annotated[
    int | None,
    _train(help="Tell top-1 of so many held-out samples, chosen likewise.", metavar="N", show_default="all"),
]
Seeds = Annotated[
    str | None,
    _train(
        help="Train from each of these seeds, of weights and order, and tell the mean.",
        metavar="N,...",
        show_default="--seed's",
    ),
]


# ---------------------------------------------------------------- flags

EPILOG = (
    "Exit codes: 0 all points measured, 1 a point failed, or with --against a cell became slower, 2 a mistake in "
    "the call, or with --against nothing could be compared, 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP."
)
DEFAULT = SweepConfig()
_NETWORKS, _SERVERS = ",".join(DEFAULT.interconnect), str(DEFAULT.servers)
_PASS = ",".join(DEFAULT.pass_)
# Flags that are no field of a run: they say what to do with one.
ACTIONS = ("config", "resume", "like", "dry_run", "list_all", "view", "page", "version")
# Flags that are another spelling of a field.
SUGAR = ("kv_store",)

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


class Shown(Exception):
    """`--help` or `--version` was printed; there is nothing more to do."""


def parse(argv: Sequence[str]) -> Invocation:
    """Read the command line. Raises UsageError, or Shown after printing help or version."""
    for word in argv:
        if not word.isprintable() and any("\udc80" <= sign <= "\udcff" for sign in word):
            raise UsageError(f"{word!r}: not UTF-8")
    asked = command(app, argv, "scaling.run")
    if not isinstance(asked, Invocation):
        raise Shown
    return asked


@app.command(epilog=EPILOG)
def sweep(
    context: typer.Context,
    strategy: panels.Strategy = None,
    kv_store: panels.KvStore = None,
    world_sizes: panels.WorldSizes = None,
    kinds: panels.Kinds = None,
    pass_: panels.Pass = _PASS,
    model: panels.Model = None,
    data: panels.Data = None,
    data_dir: panels.DataDir = None,
    feed: panels.Feed = DEFAULT.feed,
    feed_workers: panels.FeedWorkers = None,
    drop_caches: panels.DropCaches = DEFAULT.drop_caches,
    device: panels.Device = DEFAULT.device,
    baseline_device: panels.BaselineDevice = None,
    shrink: panels.Shrink = None,
    dilate: panels.Dilate = None,
    batch_size: panels.BatchSize = None,
    batch_sizes: panels.BatchSizes = None,
    global_batch_size: panels.GlobalBatchSize = None,
    batch_rule: panels.BatchRule = None,
    precision: panels.Precision = DEFAULT.precision,
    memory_format: panels.MemoryFormat = DEFAULT.memory_format,
    compile: panels.Compile = DEFAULT.compile,
    image_size: panels.ImageSize = None,
    sequence_length: panels.SequenceLength = None,
    optimizer: panels.Optimizer = None,
    epochs: Epochs = None,
    target_top1: TargetTop1 = None,
    lr: Lr = None,
    lr_scale: LrScale = None,
    warmup_epochs: WarmupEpochs = None,
    lr_steps: LrSteps = None,
    augment_epochs: AugmentEpochs = None,
    weights: Weights = None,
    seeds: Seeds = None,
    train_samples: TrainSamples = None,
    test_samples: TestSamples = None,
    save_weights: SaveWeights = None,
    option: panels.Option = None,
    placement: panels.Placement = DEFAULT.placement,
    servers: panels.Servers = _SERVERS,
    server_hosts: panels.ServerHosts = DEFAULT.server_hosts,
    interconnect: panels.Interconnect = _NETWORKS,
    fabric: panels.Fabric = None,
    cpus_per_rank: panels.CpusPerRank = None,
    interleave: panels.Interleave = None,
    rounds: panels.Rounds = None,
    windows: panels.Windows = None,
    window_s: panels.WindowS = None,
    soak_s: panels.SoakS = None,
    trace: panels.Trace = DEFAULT.trace,
    target_ci: panels.TargetCi = None,
    max_rounds: panels.MaxRounds = DEFAULT.max_rounds,
    predict_first: panels.PredictFirst = None,
    seed: panels.Seed = DEFAULT.seed,
    malloc: panels.Malloc = DEFAULT.malloc,
    fresh_workers: panels.FreshWorkers = False,
    startup_timeout_s: run_panels.StartupTimeoutS = DEFAULT.startup_timeout_s,
    stall_timeout_s: run_panels.StallTimeoutS = DEFAULT.stall_timeout_s,
    point_timeout_s: run_panels.PointTimeoutS = DEFAULT.point_timeout_s,
    results: run_panels.Results = DEFAULT.results,
    name: run_panels.Name = DEFAULT.name,
    view: run_panels.View = "plain",
    page: run_panels.Page = True,
    config: run_panels.Config = None,
    resume: run_panels.Resume = None,
    like: run_panels.Like = None,
    against: run_panels.Against = None,
    dry_run: run_panels.DryRun = False,
    list_all: run_panels.ListAll = False,
    version: run_panels.Version = False,
) -> Invocation:
    """How well does data-parallel training scale on this cluster, and where does the loss go?

    Start it with one rank per device:  mpirun -np 16 python -m scaling.run
    """  # fmt: skip
    if view not in ("live", "plain", "none"):
        raise UsageError(f"--view {view} (or SCALING_VIEW): not one of live, plain, none")
    given = fields(_given(context), kv_store)
    file = configuration.read_file(config) if config is not None else {}
    base = _older_run(given, file)
    _check_runs(resume, {**given, "config": config, "like": like}, base)
    return Invocation(
        given=given,
        base=file,
        resume=resume,
        like=like,
        against=base,
        dry_run=dry_run,
        list_all=list_all,
        view=view,  # type: ignore[arg-type]
        page=page,
    )


def _older_run(given: dict[str, Any], file: dict[str, Any]) -> Path | None:
    """The run that `against` names, by flag or else in the file; then it is taken out of both, since it is no
    revision. None for a revision, or nothing. Raises UsageError for a path that cannot be looked at."""
    asked = given.get("against", file.get("against"))
    if asked is None:
        return None
    try:
        Path(asked).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--against {asked}: {why}; give the folder of a run, or a revision") from None
    for fields_ in (given, file):
        fields_.pop("against", None)
    return Path(asked)


def _check_runs(resume: Path | None, others: Mapping[str, Any], base: Path | None) -> None:
    """Refuse an older run to go on with beside anything else, and two to take settings from. Raises UsageError."""
    with_it = [name for name, value in others.items() if value is not None]
    if resume is not None and base is not None:
        raise UsageError(
            f"--resume, --against: one or the other; leave out --against, and when the run is whole: "
            f"python -m scaling compare {base} {resume}"
        )
    if resume is not None and with_it:
        raise UsageError(
            f"--resume: goes on with the settings of that run; leave out --{with_it[0].replace('_', '-')}, "
            "or start a new run with --like"
        )
    if others["like"] is not None and base is not None:
        raise UsageError("--like, --against: both give the settings of a run; leave out --like")


def _given(context: typer.Context) -> dict[str, Any]:
    """The values of the fields that were given as flags, by field."""
    named = {field: f"{field}_" if iskeyword(field) else field for field in FIELDS}
    sources = {field: context.get_parameter_source(name) for field, name in named.items()}
    return {
        field: context.params[named[field]]
        for field, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }
