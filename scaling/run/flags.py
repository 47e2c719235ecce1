"""argv -> Invocation; the only file that sees argv. What each flag says of itself stands in `panels.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from scaling.command import command
from scaling.errors import UsageError
from scaling.plan import config as configuration
from scaling.plan.config import FIELDS, SweepConfig
from scaling.run import panels
from scaling.run.invocation import Invocation, fields

EPILOG = "Exit codes: 0 all points measured, 1 a point failed, 2 a mistake in the call, 130 Ctrl-C, 143 SIGTERM."
DEFAULT = SweepConfig()
_KINDS, _NETWORKS, _SERVERS = ",".join(DEFAULT.kinds), ",".join(DEFAULT.interconnect), str(DEFAULT.servers)
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
    kinds: panels.Kinds = _KINDS,
    model: panels.Model = None,
    data: panels.Data = None,
    device: panels.Device = DEFAULT.device,
    shrink: panels.Shrink = None,
    dilate: panels.Dilate = None,
    batch_size: panels.BatchSize = None,
    global_batch_size: panels.GlobalBatchSize = None,
    batch_rule: panels.BatchRule = None,
    precision: panels.Precision = DEFAULT.precision,
    memory_format: panels.MemoryFormat = DEFAULT.memory_format,
    compile: panels.Compile = DEFAULT.compile,
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
    trace: panels.Trace = DEFAULT.trace,
    target_ci: panels.TargetCi = None,
    max_rounds: panels.MaxRounds = DEFAULT.max_rounds,
    seed: panels.Seed = DEFAULT.seed,
    malloc: panels.Malloc = DEFAULT.malloc,
    fresh_workers: panels.FreshWorkers = False,
    startup_timeout_s: panels.StartupTimeoutS = DEFAULT.startup_timeout_s,
    stall_timeout_s: panels.StallTimeoutS = DEFAULT.stall_timeout_s,
    point_timeout_s: panels.PointTimeoutS = DEFAULT.point_timeout_s,
    results: panels.Results = DEFAULT.results,
    name: panels.Name = DEFAULT.name,
    view: panels.View = "plain",
    page: panels.Page = True,
    config: panels.Config = None,
    resume: panels.Resume = None,
    like: panels.Like = None,
    dry_run: panels.DryRun = False,
    list_all: panels.ListAll = False,
    version: panels.Version = False,
) -> Invocation:
    """How well does data-parallel training scale on this cluster, and where does the loss go?

    Start it with one rank per device:  mpirun -np 16 python -m scaling.run
    """  # fmt: skip
    if view not in ("live", "plain", "none"):
        raise UsageError(f"--view {view} (or SCALING_VIEW): not one of live, plain, none")
    given = fields(_given(context), kv_store)
    if resume is not None and (given or config or like):
        with_it = [*given, *(["config"] if config else []), *(["like"] if like else [])]
        raise UsageError(
            f"--resume: goes on with the settings of that run; leave out --{with_it[0].replace('_', '-')}, "
            "or start a new run with --like"
        )
    return Invocation(
        given=given,
        base=configuration.read_file(config) if config is not None else {},
        resume=resume,
        like=like,
        dry_run=dry_run,
        list_all=list_all,
        view=view,  # type: ignore[arg-type]
        page=page,
    )


def _given(context: typer.Context) -> dict[str, Any]:
    """The values of the fields that were given as flags, by field."""
    sources = {field: context.get_parameter_source(field) for field in FIELDS}
    return {
        field: context.params[field]
        for field, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }
