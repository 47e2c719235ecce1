"""The flags of `predict`, `predict register` and `predict learn`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Option

from scaling.command import command, output_flag
from scaling.records.point import Record
from scaling.tools.predict.priors import FILE

NAME = "scaling predict"
Format = Literal["table", "json"]

EPILOG = "Exit codes: 0 predicted, 2 a mistake in the call, a run that cannot be read or nothing to predict from."

app = typer.Typer(add_completion=False)


class Asked(Record, frozen=True, kw_only=True):
    """The parsed command line. None and empty: not given."""

    run: Path | None = None
    world_sizes: str = ""
    strategy: str = ""
    interconnect: str = ""
    up_to: int | None = None
    network: str = ""
    batch_size: int | None = None
    model: str = ""
    compress: float = 1.0
    devices_per_node: int | None = None
    without: str = ""
    rate: float | None = None
    cold: bool = False
    device: str = ""
    target: float | None = None
    prices: Path | None = None
    check: Path | None = None
    priors: Path = FILE
    format: Format = "table"
    output: Path | None = None


def parse(argv: Sequence[str]) -> Asked | None:
    """Parse the command line; None after printing help. Raises UsageError."""
    asked = command(app, argv, NAME)
    return asked if isinstance(asked, Asked) else None


_WHAT_IF = "What if"
_COLD = "Without a run"
_PLAN = "Planner"
_NETWORK = "Between nodes: KIND:GBIT or KIND:GBITxCARDS of one node, such as ib:200 or tcp:25x2."


@app.command(epilog=EPILOG)
def predict(
    run: Annotated[
        Path | None, typer.Argument(help="A run's folder, or its run.jsonl.", metavar="RUN", show_default=False)
    ] = None,
    world_sizes: Annotated[
        str, Option(help="32,64 or doublings from 32..1024.", metavar="N,...|A..B", show_default="beyond the run")
    ] = "",
    strategy: Annotated[str, Option(help="Of a run with several.", metavar="NAME", show_default="fastest")] = "",
    interconnect: Annotated[str, Option(help="The same.", metavar="NAME", show_default="fastest")] = "",
    up_to: Annotated[
        int | None,
        Option(help="Learn from world sizes up to this one; larger ones are predicted beside measured.", min=2),
    ] = None,
    network: Annotated[str, Option(help=_NETWORK, metavar="NET", rich_help_panel=_WHAT_IF)] = "",
    batch_size: Annotated[
        int | None, Option(help="Per device; one device must have run it.", min=1, rich_help_panel=_WHAT_IF)
    ] = None,
    model: Annotated[
        str, Option(help="One device must have run it, or --rate.", metavar="NAME", rich_help_panel=_WHAT_IF)
    ] = "",
    compress: Annotated[
        float, Option(help="Divide gradients' bytes by this. What compressing costs is not known.",
                      metavar="K", rich_help_panel=_WHAT_IF)
    ] = 1.0,
    devices_per_node: Annotated[
        int | None, Option(help="Of nodes to come.", min=1, rich_help_panel=_WHAT_IF, show_default="the run's")
    ] = None,
    without: Annotated[
        str, Option(help="What the other nodes would do.", metavar="NODE", rich_help_panel=_WHAT_IF)
    ] = "",
    rate: Annotated[
        float | None, Option(help="Samples/s of one device (of a RUN of text: tokens/s).", metavar="R",
                             rich_help_panel=_COLD)
    ] = None,
    cold: Annotated[
        bool, Option("--cold", help="From --rate, --model, --batch-size, --devices-per-node and --network alone.",
                     rich_help_panel=_COLD)
    ] = False,
    device: Annotated[
        str, Option(help="What --prices calls the device of --cold.", metavar="NAME", rich_help_panel=_COLD)
    ] = "",
    target: Annotated[
        float | None, Option(help="Samples/s or tokens/s that are wanted: find the cheapest cluster.", metavar="R",
                             rich_help_panel=_PLAN)
    ] = None,
    prices: Annotated[
        Path | None, Option(help="TOML file.", metavar="FILE", envvar="SCALING_PRICES", rich_help_panel=_PLAN)
    ] = None,
    check: Annotated[
        Path | None,
        Option(help="What python -m scaling check --json measured of the network.", metavar="FILE")
    ] = None,
    priors: Annotated[Path, Option(help="Of scaling predict learn.", show_default="the package's")] = FILE,
    format_: Annotated[Format, Option("--format", help="For people: table; for programs: json.")] = "table",
    output: Annotated[Path | None, output_flag("--output")] = None,
) -> Asked:  # fmt: skip
    """Predict images/s and efficiency of world sizes, networks, batches and models that were not measured."""
    return Asked(
        run=run, world_sizes=world_sizes, strategy=strategy, interconnect=interconnect, up_to=up_to,
        network=network, batch_size=batch_size, model=model, compress=compress, devices_per_node=devices_per_node,
        without=without, rate=rate, cold=cold, device=device, target=target, prices=prices, check=check,
        priors=priors, format=format_, output=output,
    )  # fmt: skip


# ---------------------------------------------------------------- register

REGISTER = "scaling predict register"

_RUN = typer.Argument(help="A run's folder, or its run.jsonl.", metavar="RUN", show_default=False)

register_app = typer.Typer(add_completion=False)


class RegisterAsked(Record, frozen=True, kw_only=True):
    run: Path


def parse_register(argv: Sequence[str]) -> RegisterAsked | None:
    asked = command(register_app, argv, REGISTER)
    return asked if isinstance(asked, RegisterAsked) else None


@register_app.command()
def register(run: Annotated[Path, _RUN]) -> RegisterAsked:
    """Predict the points that stand as JSON on standard input; print a prediction of each as JSON.

    `scaling.run --predict-first` asks so, and keeps the answers in the run before it measures the points.
    """
    return RegisterAsked(run=run)


# ---------------------------------------------------------------- learn

LEARN = "scaling predict learn"

_PUBLISHED = typer.Argument(help="A JSON array of published series.", metavar="PUBLISHED", show_default=False)
_OUTPUT = typer.Option("--output", help="Where the priors go.", metavar="FILE", show_default="the package's own")

learn_app = typer.Typer(add_completion=False)


class LearnAsked(Record, frozen=True, kw_only=True):
    published: Path
    output: Path = FILE


def parse_learn(argv: Sequence[str]) -> LearnAsked | None:
    asked = command(learn_app, argv, LEARN)
    return asked if isinstance(asked, LearnAsked) else None


@learn_app.command()
def learn(
    published: Annotated[Path, _PUBLISHED],
    output: Annotated[Path, _OUTPUT] = FILE,
) -> LearnAsked:
    """Learn the priors of scaling predict from published series of trust A and B, and write their file."""
    return LearnAsked(published=published, output=output)
