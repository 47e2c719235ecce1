"""The command line of the report, with all its flags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from scaling.analysis.table.cost import KNEE
from scaling.command import command, output_flag, show, with_fields
from scaling.errors import UsageError
from scaling.records.point import Record

NAME = "scaling report"
EPILOG = (
    "Exit codes: 0 shown, 1 a full disk, or with --signed-by no signature that holds, 2 a mistake in the call or "
    "a run that cannot be read."
)
Format = Literal[
    "table", "markdown", "csv", "json", "html", "svg", "png", "pdf", "latex", "openmetrics", "archive", "reference"
]  # fmt: skip
FigureName = Literal[
    "speedup", "efficiency", "loss", "rounds", "ranks", "cards", "devices", "run", "burn-in", "screen"
]  # fmt: skip
PICTURES = ("svg", "png", "pdf")
# Formats that a terminal cannot show.
FOR_FILES = ("html", *PICTURES, "archive")
# Formats without costs.
COSTLESS = ("openmetrics", "archive")
USUAL_SCALE, MOST_SCALE = 2.0, 10.0

_RUNS = typer.Argument(
    help="Run folders, their run.jsonl, or archives of --format archive.", metavar="RUN...", show_default=False
)
_FORMAT = typer.Option(
    "--format",
    help="For people: table, markdown, latex, html (a page with figures). One figure: svg, png, pdf. Programs: "
    "csv, json, openmetrics. archive: one .tgz to send. reference: what scaling certify judges other machines by.",
    metavar="NAME",
)
_FIGURE = typer.Option(
    "--figure",
    help=f"The figure of svg, png and pdf: {', '.join(get_args(FigureName))} (svg alone).",
    metavar="NAME",
)
_THEME = typer.Option(
    "--theme", help="light or dark, for svg, png and pdf. A page follows its reader's theme.", metavar="NAME"
)
_COLUMN = typer.Option("--column", help="Draw svg, png and pdf for a column of a paper, 3.5 inches wide.")
_SCALE = typer.Option("--scale", help="Scale of png: times 100 dots per inch.", metavar="X")
_JOIN = typer.Option("--join", help="Put runs into one table even if hosts, devices, versions or code differ.")
_PRICES = typer.Option(
    "--prices", help="A file of machine prices; adds what rows cost.", metavar="FILE", envvar="SCALING_PRICES"
)
_EPOCH = typer.Option(
    "--epoch-samples", help="Samples of an epoch, for its price.", metavar="N", show_default="known data's own"
)
_KNEE = typer.Option(
    "--knee", help="Limit of the cost of added samples, as a multiple of the mean cost.", metavar="X"
)
_BASE = typer.Option(
    "--base",
    help="The row that costs are relative to; without prices all devices cost the same.",
    metavar="'NAME N=K'",
    show_default="the own plain loop",
)
_ANONYMOUS = typer.Option("--anonymous", help="Leave out names of hosts, other programs, users and folders.")
_SIGNED_BY = typer.Option(
    "--signed-by",
    help="Show a run only if one of these signed it (scaling certify --sign). FILE is a file of allowed signers, "
    "as man ssh-keygen describes it.",
    metavar="FILE[:IDENTITY]",
)
_VERBOSE = typer.Option(
    "--verbose", help="Print all tables, notes and how to read them. Files have all, but latex has one table."
)

app = typer.Typer(add_completion=False)


def _print_schema(wanted: bool) -> None:
    if wanted:
        from scaling.report.formats import json  # slow to import

        show(json.schema())
        raise typer.Exit


_SCHEMA = typer.Option(
    "--schema", help="Print the JSON Schema of --format json.", callback=_print_schema, is_eager=True
)


class Asked(Record, frozen=True, kw_only=True):
    runs: Annotated[list[Path], _RUNS]
    format: Annotated[Format, _FORMAT] = "table"
    join: Annotated[bool, _JOIN] = False
    output: Annotated[Path | None, output_flag("-o", "--output")] = None
    figure: Annotated[FigureName | None, _FIGURE] = None
    theme: Annotated[Literal["light", "dark"], _THEME] = "light"
    column: Annotated[bool, _COLUMN] = False
    scale: Annotated[float, _SCALE] = USUAL_SCALE
    prices: Annotated[Path | None, _PRICES] = None
    epoch_samples: Annotated[int, _EPOCH] = 0
    knee: Annotated[float, _KNEE] = KNEE
    base: Annotated[str, _BASE] = ""
    verbose: Annotated[bool, _VERBOSE] = False
    anonymous: Annotated[bool, _ANONYMOUS] = False
    signed_by: Annotated[str, _SIGNED_BY] = ""
    schema: Annotated[bool, _SCHEMA] = False

    @property
    def is_short(self) -> bool:
        """Whether neither costs nor all tables are asked for."""
        return not (self.verbose or self.prices or self.base)

    @property
    def is_screen(self) -> bool:
        """Whether the last screen of a run is asked for: no file, no costs, not all."""
        return self.format == "table" and not self.output and self.is_short


def parse(argv: Sequence[str]) -> Asked | None:
    """Read the command line; None after printing help. Raises UsageError."""
    asked = command(app, argv, NAME)
    return asked if isinstance(asked, Asked) else None


@app.command(epilog=EPILOG)
@with_fields(Asked)
def report(**given: Any) -> Asked:
    """Show runs of scaling.run: images/s, speedup, efficiency, and where the loss went.

    The answer again, or all tables and notes:
        python -m scaling report RUN
        python -m scaling report RUN --verbose
    A page with figures, one file that works offline:
        python -m scaling report RUN --format html -o page.html
    One file to send, which this command opens and checks:
        python -m scaling report RUN --format archive -o RUN.tgz
    """
    asked = Asked(**given)
    for said in (*_mistakes(asked), *_idle(asked)):
        raise UsageError(said)
    return asked


def _mistakes(asked: Asked) -> Iterator[str]:
    """Yield what is wrong with flags that do not go together, and with numbers."""
    pictures = ", ".join(PICTURES)
    if asked.format in PICTURES and asked.figure is None:
        yield f"--format {asked.format}: --figure is missing; give one of {', '.join(get_args(FigureName))}"
    if asked.figure is not None and asked.format not in PICTURES:
        yield f"--figure {asked.figure}: only with --format {pictures}; html has all figures"
    if asked.figure == "screen" and asked.format != "svg":
        yield f"--figure screen: only with --format svg, not {asked.format}"
    if asked.format == "archive" and len(asked.runs) > 1:
        yield f"--format archive: packs one RUN, {len(asked.runs)} are given"
    if not 0.1 <= asked.scale <= MOST_SCALE:
        yield f"--scale {asked.scale:g}: must be from 0.1 to {MOST_SCALE:g}"
    if not 1 <= asked.knee < inf:
        yield f"--knee {asked.knee:g}: must be 1 or more, like 1.5, as a multiple of the mean cost"
    if asked.epoch_samples < 0:
        yield f"--epoch-samples {asked.epoch_samples}: must be a number of samples, like 1281167"


def _idle(asked: Asked) -> Iterator[str]:
    """Yield what is wrong with flags without effect in this format."""
    pictures = ", ".join(PICTURES)
    if asked.base and asked.format in COSTLESS:
        yield f"--base {asked.base}: not with --format {asked.format}, which has no costs"
    if asked.theme != "light" and asked.format not in PICTURES:
        yield f"--theme {asked.theme}: only with --format {pictures}"
    if asked.column and (asked.format not in PICTURES or asked.figure == "screen"):
        yield f"--column: only with --format {pictures}, and not with --figure screen"
    if asked.scale != USUAL_SCALE and asked.format != "png":
        yield f"--scale {asked.scale:g}: only with --format png; the other formats have no dots"
    if asked.epoch_samples > 0 and asked.prices is None:
        yield f"--epoch-samples {asked.epoch_samples}: only for the price of an epoch; add --prices FILE"
    if asked.knee != KNEE and asked.prices is None and not asked.base:
        yield f"--knee {asked.knee:g}: only for costs; add --prices FILE or --base"
