"""Parse argv to an Invocation. The flags of fields are made from `SweepConfig`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args

import typer

from scaling import __version__, files
from scaling.command import check_output, command
from scaling.errors import UsageError, near
from scaling.plan import config as configuration
from scaling.plan.config import OUT, WHAT, Field, SweepConfig, fields_of
from scaling.run.invocation import Invocation, fields
from scaling.transport import start
from scaling.transport.terminal import ViewKind

EPILOG = (
    "Exit codes: 0 all points measured, 1 a point failed, or with --against a cell became slower, 2 a mistake in "
    "the call, or nothing could be compared, 3 a cell is undecided (--require-proof), 130 Ctrl-C, 143 SIGTERM, "
    "129 SIGHUP."
)
# Flag -> the flag that it follows in --help, if not in the order of the fields.
PLACES = {"kv_store": "strategy"}
# Flags of the short help, by their names in Python.
USUAL = (
    *(one.name for one in fields_of(SweepConfig).values() if one.flag.usual),
    "view", "page", "resume", "against", "dry_run", "list_all",
)  # fmt: skip

app = typer.Typer(add_completion=False)


class Shown(Exception):
    """`--help` or `--version` was printed; nothing remains to be done."""


def parse(argv: Sequence[str]) -> Invocation:
    """Read the command line. Raises UsageError, or Shown after help or version."""
    for word in argv:
        if not word.isprintable() and any("\udc80" <= sign <= "\udcff" for sign in word):
            raise UsageError(f"{word!r}: not UTF-8")
    asked = command(app, argv, "scaling.run", usual=USUAL)
    if not isinstance(asked, Invocation):
        raise Shown
    return asked


# ---------------------------------------------------------------- flags of fields

Command = TypeVar("Command", bound=Callable[..., Any])


def with_fields(
    names: Collection[str] = (), of: type[SweepConfig] = SweepConfig, **defaults: Any
) -> Callable[[Command], Command]:
    """Decorate a command with the flags of these fields, by default of all, before its own flags.
    `defaults` replace those of the fields. The command receives the values as `**flags`; `given` reads them."""
    known = fields_of(of)
    added = {name: _parameter(known[name], defaults.get(name, known[name].default)) for name in names or known}

    def add(function: Command) -> Command:
        own = inspect.signature(function, eval_str=True)
        parameters = {name: one for name, one in own.parameters.items() if one.kind is not one.VAR_KEYWORD}
        context = {"context": parameters.pop("context")}
        every = {**context, **added, **parameters}
        ordered = [name for name in every if name not in PLACES]
        for name in PLACES.keys() & parameters:
            ordered.insert(ordered.index(PLACES[name]) + 1, name)
        taken = [every[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in ordered]
        cast(Any, function).__signature__ = own.replace(parameters=taken)
        return function

    return add


def _parameter(field: Field, default: Any) -> inspect.Parameter:
    """Make the parameter for Typer. Lists, and fields of a word or number, are text."""
    said = field.flag
    kind: Any
    kind, *others = (list,) if field.is_list else field.types
    names = (f"--{field.key}",) if iskeyword(field.key) else ()
    option: Any = typer.Option(
        *names,
        help=said.help,
        metavar=field.metavar,
        show_default=said.default or True,
        rich_help_panel=said.panel,
    )
    if said.repeats:
        kind, default = list[str], default or None
    elif others or kind not in (bool, int, float, str):
        kind, default = str, ",".join(default) if isinstance(default, tuple) else default
        default = default if default is None else str(default)
    taken: Any = kind if default is not None else kind | None
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[taken, option]
    )


def given(context: typer.Context) -> dict[str, Any]:
    """Return the fields that were given as flags."""
    sources = {field: context.get_parameter_source(field.name) for field in fields_of(SweepConfig).values()}
    return {
        field.key: context.params[field.name]
        for field, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }


# ---------------------------------------------------------------- flags that are no field


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"scaling {__version__}")
        raise typer.Exit


_out, _runs = partial(typer.Option, rich_help_panel=OUT), partial(typer.Option, rich_help_panel="Runs")
# fmt: off
KvStore = Annotated[str | None, typer.Option(
    help="kvstores as MXNet names them: dist_sync,device is --strategy mxnet:dist_sync,mxnet:device.",
    metavar="MODE,...", rich_help_panel=WHAT)]
View = Annotated[str, _out(
    help="live draws a screen, plain prints lines, none nothing; auto is live on a terminal, else plain.",
    metavar="HOW", envvar="SCALING_VIEW")]
Page = Annotated[bool, _out(
    "--page/--no-page", help="Write page.html next to run.jsonl when the run ends.", envvar="SCALING_PAGE")]
Verbose = Annotated[bool, _out("--verbose", help="End with all tables, notes and how to read them.")]
Metrics = Annotated[Path | None, _out(
    help="Write metrics for Prometheus when the run ends, for node_exporter's textfile collector (*.prom).",
    metavar="FILE")]
Config = Annotated[Path | None, _runs(
    help="TOML file with these flags (world_sizes = [1, 2]); the command line wins.", metavar="FILE")]
Resume = Annotated[Path | None, _runs(help="Measure the points that a run still lacks.", metavar="RUN")]
Against = Annotated[Path | None, _runs(help="Start a new run as --like does, then compare both.", metavar="RUN")]
Like = Annotated[Path | None, _runs(
    help="Start a new run with the settings of an older one; flags win.", metavar="RUN")]
RequireProof = Annotated[bool, _runs(
    "--require-proof", help="With --against: exit with 3 if nothing is slower but a cell is undecided.")]
DryRun = Annotated[bool, _runs("--dry-run", help="Print the plan and what is missing; measure nothing.")]
ListAll = Annotated[bool, _runs("--list", help="Print strategies, models, data and what each lacks.")]
Version = Annotated[bool, _runs("--version", help="Print the version.", callback=_version, is_eager=True)]
# fmt: on


def checked_view(view: str) -> ViewKind:
    """Return the view. Raises UsageError for an unknown name."""
    if view not in get_args(ViewKind):
        raise UsageError(f"--view {view} (or SCALING_VIEW): not one of {', '.join(get_args(ViewKind))}")
    return view  # type: ignore[return-value]


# ---------------------------------------------------------------- the command


@app.command(epilog=f"{start.ABOUT}\n\n{EPILOG}")
@with_fields()
def sweep(
    context: typer.Context,
    kv_store: KvStore = None,
    view: View = "auto",
    page: Page = True,
    verbose: Verbose = False,
    metrics: Metrics = None,
    config: Config = None,
    resume: Resume = None,
    against: Against = None,
    require_proof: RequireProof = False,
    like: Like = None,
    dry_run: DryRun = False,
    list_all: ListAll = False,
    version: Version = False,
    **flags: Any,
) -> Invocation:
    """Measure how well data-parallel training scales, and where the loss goes.

    One machine, one rank per device:
        python -m scaling.run
    A cluster, its nodes in a hostfile:
        mpirun -np 16 --hostfile hostfiles/4x4 python -m scaling.run
    Exchanges compared:
        python -m scaling.run --strategy torch:gloo,torch:horovod
    """
    viewed = checked_view(view)
    if metrics is not None:
        check_output(metrics, "--metrics")
    told = fields(given(context), kv_store)
    file = read_file(config) if config is not None else {}
    _check_runs(resume, {**told, "config": config, "like": like}, against)
    if require_proof and against is None:
        raise UsageError("--require-proof: only with --against RUN: without it nothing is compared")
    return Invocation(
        given=told,
        base=file,
        resume=resume,
        like=like,
        against=against,
        dry_run=dry_run,
        list_all=list_all,
        view=viewed,
        page=page,
        verbose=verbose,
        metrics=metrics,
        require_proof=require_proof,
    )


def read_file(path: Path, of: type[SweepConfig] = SweepConfig) -> dict[str, Any]:
    """Read a TOML file of SweepConfig fields. Raises UsageError that names the wrong key or line."""
    data, known = files.toml(path, f"--config {path}"), fields_of(of)
    for key in data:
        if key not in known:
            raise UsageError(f"--config {path}: unknown key {key!r}; {near(key, known)}")
    configuration.build(data, source=f"--config {path}", of=of)
    return data


def _check_runs(resume: Path | None, others: Mapping[str, Any], base: Path | None) -> None:
    with_it = [name for name, value in others.items() if value is not None]
    if resume is not None and base is not None:
        raise UsageError(
            f"--resume and --against: give one; leave out --against, and once the run is complete: "
            f"python -m scaling compare {base} {resume}"
        )
    if resume is not None and with_it:
        raise UsageError(
            f"--resume: it continues with the settings of that run; leave out --{with_it[0].replace('_', '-')}, "
            "or start a new run with --like"
        )
    if others["like"] is not None and base is not None:
        raise UsageError("--like, --against: both give the settings of a run; leave out --like")
