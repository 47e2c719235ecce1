"""argv -> Invocation; the only file that sees argv. Every flag is declared here, once, with Typer.

A flag given on the command line wins over the `--config` file, which wins over `--like`'s run,
which wins over the defaults of `SweepConfig`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer import Option

from scaling import __version__
from scaling.errors import UsageError
from scaling.plan import config
from scaling.plan.config import FIELDS, SweepConfig
from scaling.records.point import Record

WHAT, HOW, LIMITS, OUT, RUNS = "What to measure", "How to measure", "Time limits", "Output", "Runs"
DEFAULT = SweepConfig()
# Flags that are no field of a run: they say what to do with one.
ACTIONS = ("config", "resume", "like", "dry_run", "list_all", "view", "version")
# Given together with the left one, the right ones of a file or an older run no longer hold.
DISPLACES: dict[str, tuple[str, ...]] = {
    "batch_size": ("global_batch_size",),
    "global_batch_size": ("batch_size",),
    "model": ("data", "batch_size", "shrink", "dilate"),
    "device": ("model", "data", "batch_size", "strategy", "shrink", "dilate"),
}
# Flags that are another spelling of a field.
SUGAR = ("kv_store",)
ViewKind = Literal["live", "plain", "none"]

EPILOG = "Exit codes: 0 all points measured, 1 a point failed, 2 a mistake in the call, 130 Ctrl-C, 143 SIGTERM."


class Invocation(Record, frozen=True, kw_only=True):
    """What the command line asks for. `given` are the fields set by flags, `base` those of the file."""

    given: dict[str, Any]
    base: dict[str, Any]
    resume: Path | None = None
    like: Path | None = None
    dry_run: bool = False
    list_all: bool = False
    view: ViewKind = "plain"


class Shown(Exception):
    """`--help` or `--version` was printed; there is nothing more to do."""


def parse(argv: Sequence[str]) -> Invocation:
    """Read the command line. Raises UsageError, or Shown after printing help or version."""
    for word in argv:
        if not word.isprintable() and any("\udc80" <= sign <= "\udcff" for sign in word):
            raise UsageError(f"{word!r}: not UTF-8")
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(epilog=EPILOG)(sweep)
    command = typer.main.get_command(app)
    try:
        found = command.main(args=list(argv), prog_name="python -m scaling.run", standalone_mode=False)
    except typer.TyperException as error:
        raise UsageError(error.format_message()) from None
    if not isinstance(found, Invocation):
        raise Shown
    return found


def resolve(invocation: Invocation, base: dict[str, Any] | None = None) -> SweepConfig:
    """Merge `base` (an older run's fields), the file and the flags; validated. Raises UsageError."""
    merged = merge(merge(base or {}, invocation.base), invocation.given)
    found = config.build(merged, source="command line")
    config.validate(found)
    return found


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` wins, also against what it displaces."""
    displaced = {other for field in over for other in DISPLACES.get(field, ()) if over[field] != base.get(field)}
    return {**{key: value for key, value in base.items() if key not in displaced}, **over}


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(flag: str, text: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise UsageError(f"{flag} {text}: not numbers; write for example 1,2,4") from None


def _fields(context: typer.Context) -> dict[str, Any]:
    """The SweepConfig fields that were given as flags, lists split at commas."""
    given: dict[str, Any] = {}
    for field in FIELDS:
        source = context.get_parameter_source(field)
        if source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[field]
        if field in ("strategy", "kinds", "interconnect"):
            value = _words(value)
        elif field == "world_sizes":
            value = _numbers("--world-sizes", value)
        elif field == "servers" and value.lstrip("-").isdigit():
            value = int(value)
        given[field] = list(value) if isinstance(value, tuple) else value
    if context.params["kv_store"] is not None:
        modes = [f"mxnet:{mode.removeprefix('mxnet:')}" for mode in _words(context.params["kv_store"])]
        given["strategy"] = [*given.get("strategy", ()), *modes]
    return given


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"scaling {__version__}")
        _stop()


def _stop() -> NoReturn:
    raise typer.Exit


def sweep(
    context: typer.Context,
    strategy: Annotated[
        str | None,
        Option(
            help="How gradients are exchanged, comma-separated; see --list.",
            rich_help_panel=WHAT,
            metavar="NAME,...",
            show_default="torch:nccl with GPUs, else torch:gloo",
        ),
    ] = None,
    kv_store: Annotated[
        str | None,
        Option(
            help="kvstores as MXNet names them: dist_sync,device is --strategy mxnet:dist_sync,mxnet:device.",
            rich_help_panel=WHAT,
            metavar="MODE,...",
            show_default="none",
        ),
    ] = None,
    world_sizes: Annotated[
        str | None,
        Option(
            help="Devices that take part, ascending.",
            rich_help_panel=WHAT,
            metavar="N,...",
            show_default="1, 2, 4, ... and the launch's size",
        ),
    ] = None,
    kinds: Annotated[
        str,
        Option(
            help="Which runs: exchange is measured; solo, together and comm are the controls that explain it.",
            rich_help_panel=WHAT,
            metavar="KIND,...",
            show_default="all",
        ),
    ] = ",".join(DEFAULT.kinds),
    model: Annotated[
        str | None,
        Option(
            help="What is trained; see --list.",
            rich_help_panel=WHAT,
            metavar="NAME",
            show_default="resnet50 with GPUs, else digits-cnn",
        ),
    ] = None,
    data: Annotated[
        str | None,
        Option(
            help="What it is fed with; see --list.",
            rich_help_panel=WHAT,
            metavar="NAME",
            show_default="the model's own",
        ),
    ] = None,
    device: Annotated[
        str,
        Option(
            help="cpu, cuda, auto (cuda where every host has GPUs), or emulated:PROFILE, which sleeps as long as "
            "a published device computes; see --list.",
            rich_help_panel=WHAT,
            metavar="KIND",
        ),
    ] = DEFAULT.device,
    shrink: Annotated[
        float | None,
        Option(
            help="Of emulated devices: divide bytes and link rates by this; undone in the table.",
            rich_help_panel=HOW,
            metavar="K",
            show_default="chosen, so that most of this machine stays idle",
        ),
    ] = None,
    dilate: Annotated[
        float | None,
        Option(
            help="Of emulated devices: multiply all times by this; undone in the table.",
            rich_help_panel=HOW,
            metavar="D",
            show_default="chosen, so that most of this machine stays idle",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        Option(
            help="Samples per device and step: weak scaling.",
            rich_help_panel=WHAT,
            show_default="the model's; 64 for resnet50, 32 for digits-cnn",
        ),
    ] = None,
    global_batch_size: Annotated[
        int | None,
        Option(
            help="Samples of a step over all devices: strong scaling.",
            rich_help_panel=WHAT,
            show_default="none",
        ),
    ] = None,
    precision: Annotated[
        str, Option(help="fp32, tf32, bf16 or fp16.", rich_help_panel=WHAT, metavar="NAME")
    ] = DEFAULT.precision,
    memory_format: Annotated[
        str, Option(help="Of images: contiguous or channels_last.", rich_help_panel=WHAT, metavar="NAME")
    ] = DEFAULT.memory_format,
    compile: Annotated[
        bool, Option(help="Compile the model (torch.compile).", rich_help_panel=WHAT)
    ] = DEFAULT.compile,
    option: Annotated[
        list[str] | None,
        Option(
            help="[STRATEGY.]KEY=VALUE: a knob of a strategy; repeat for more; see --list.",
            rich_help_panel=WHAT,
            metavar="K=V",
            show_default="none",
        ),
    ] = None,
    placement: Annotated[
        str,
        Option(
            help="pack fills one node after the other, spread deals ranks out over the nodes.",
            rich_help_panel=HOW,
            metavar="HOW",
        ),
    ] = DEFAULT.placement,
    servers: Annotated[
        str,
        Option(
            help="Parameter servers of a point, for the strategies that have them.",
            rich_help_panel=HOW,
            metavar="N|per-node",
        ),
    ] = str(DEFAULT.servers),
    server_hosts: Annotated[
        str,
        Option(
            help="shared with the training, or dedicated: nodes that a point leaves free, while it leaves any.",
            rich_help_panel=HOW,
            metavar="HOW",
        ),
    ] = DEFAULT.server_hosts,
    interconnect: Annotated[
        str,
        Option(
            help="Networks to measure over: names of the fabric file, interfaces, subnets; auto: the fastest "
            "that all nodes share.",
            rich_help_panel=HOW,
            metavar="NAME,...",
        ),
    ] = ",".join(DEFAULT.interconnect),
    fabric: Annotated[
        str | None,
        Option(
            help="TOML file that names networks: interface, subnet, hca, rate_gbit (hostfiles/fabric.toml).",
            rich_help_panel=HOW,
            metavar="FILE",
            show_default="SCALING_FABRIC, else none",
        ),
    ] = None,
    cpus_per_rank: Annotated[
        int | None,
        Option(
            help="Cores of each rank, at every world size.",
            rich_help_panel=HOW,
            show_default="cores / local ranks, at least 1",
        ),
    ] = None,
    rounds: Annotated[
        int, Option(help="Times that every point is measured, shuffled.", rich_help_panel=HOW)
    ] = DEFAULT.rounds,
    windows: Annotated[int, Option(help="Timed windows of each point.", rich_help_panel=HOW)] = DEFAULT.windows,
    window_s: Annotated[
        float, Option(help="Seconds that a window lasts at least.", rich_help_panel=HOW)
    ] = DEFAULT.window_s,
    target_ci: Annotated[
        str | None,
        Option(
            help="Add rounds until half of every efficiency's 95 % interval is below this.",
            rich_help_panel=HOW,
            metavar="1%",
            show_default="none",
        ),
    ] = None,
    max_rounds: Annotated[
        int, Option(help="Rounds that --target-ci may reach.", rich_help_panel=HOW)
    ] = DEFAULT.max_rounds,
    seed: Annotated[
        int, Option(help="Of the order, the weights and the data.", rich_help_panel=HOW)
    ] = DEFAULT.seed,
    startup_timeout_s: Annotated[
        float, Option(help="Seconds until a worker must be ready, and for its first step.", rich_help_panel=LIMITS)
    ] = DEFAULT.startup_timeout_s,
    stall_timeout_s: Annotated[
        float, Option(help="Seconds that a worker may say nothing.", rich_help_panel=LIMITS)
    ] = DEFAULT.stall_timeout_s,
    point_timeout_s: Annotated[
        float, Option(help="Seconds that a point may take in all.", rich_help_panel=LIMITS)
    ] = DEFAULT.point_timeout_s,
    results: Annotated[
        str, Option(help="Folder of all runs.", rich_help_panel=OUT, metavar="DIR")
    ] = DEFAULT.results,
    name: Annotated[str, Option(help="Ends the run's folder name.", rich_help_panel=OUT)] = DEFAULT.name,
    view: Annotated[
        str,
        Option(
            help="live draws a screen, plain prints a line per event, none nothing.",
            rich_help_panel=OUT,
            metavar="HOW",
            envvar="SCALING_VIEW",
        ),
    ] = "plain",
    config: Annotated[
        Path | None,
        Option(
            help="TOML file of these flags' names (world_sizes = [1, 2]); flags win.",
            rich_help_panel=RUNS,
            metavar="FILE",
            show_default="none",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        Option(help="Measure what a run still lacks.", rich_help_panel=RUNS, metavar="RUN", show_default="none"),
    ] = None,
    like: Annotated[
        Path | None,
        Option(
            help="A new run with the settings of an older one; flags win.",
            rich_help_panel=RUNS,
            metavar="RUN",
            show_default="none",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        Option("--dry-run", help="Print the plan and what is missing; measure nothing.", rich_help_panel=RUNS),
    ] = False,
    list_all: Annotated[
        bool,
        Option(
            "--list",
            help="Print strategies, models and data, and what each lacks here.",
            rich_help_panel=RUNS,
        ),
    ] = False,
    version: Annotated[
        bool,
        Option("--version", help="Print the version.", rich_help_panel=RUNS, callback=_version, is_eager=True),
    ] = False,
) -> Invocation:
    """How well does data-parallel training scale on this cluster, and where does the loss go?

    Start it with one rank per device:  mpirun -np 16 python -m scaling.run
    """  # fmt: skip
    if view not in ("live", "plain", "none"):
        raise UsageError(f"--view {view} (or SCALING_VIEW): not one of live, plain, none")
    given = _fields(context)
    if resume is not None and (given or config or like):
        with_it = [*given, *(["config"] if config else []), *(["like"] if like else [])]
        raise UsageError(
            f"--resume: goes on with the settings of that run; leave out --{with_it[0].replace('_', '-')}, "
            "or start a new run with --like"
        )
    return Invocation(
        given=given,
        base=_read(config),
        resume=resume,
        like=like,
        dry_run=dry_run,
        list_all=list_all,
        view=view,  # type: ignore[arg-type]
    )


def _read(path: Path | None) -> dict[str, Any]:
    return config.read_file(path) if path is not None else {}
