"""The flags of `history`; `parse` turns argv into `Asked`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from scaling.command import command, output_flag, with_fields
from scaling.records.point import Record

NAME = "scaling history"
EPILOG = "Exit codes: 0 listed, 2 a mistake in the call or a folder without runs."
Format = Literal["table", "markdown", "csv", "json", "html"]

_RESULTS = Argument(help="The folder with the runs.", metavar="RESULTS_DIR")
_FORMAT = Option(
    "--format",
    help="For people: table, markdown, html (a page with series). For programs: csv, json.",
    metavar="NAME",
)

app = typer.Typer(add_completion=False)


class Asked(Record, frozen=True, kw_only=True):
    results: Annotated[Path, _RESULTS] = Path("results")
    format: Annotated[Format, _FORMAT] = "table"
    output: Annotated[Path | None, output_flag("--output", "-o")] = None


@app.command(epilog=EPILOG)
@with_fields(Asked)
def history(**flags: Any) -> Asked:
    """List all runs of a folder: date, hosts, settings, rate, and which are comparable.

    A table, one run a line:
        python -m scaling history results
    A page with each exchange, run after run:
        python -m scaling history results --format html -o runs.html
    """
    return Asked(**flags)


def parse(argv: Sequence[str]) -> Asked | None:
    """Parse the command line; None after printing help. Raises UsageError."""
    asked: Asked | None = command(app, argv, NAME) or None
    return asked
