"""The flags of `history`; `parse` turns argv into `Asked`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from scaling.command import command, output_flag
from scaling.records.point import Record

NAME = "scaling history"
Format = Literal["table", "markdown", "csv", "json", "html"]

_RESULTS = Argument(help="The folder in which runs are.", metavar="RESULTS_DIR")
_FORMAT = Option(
    "--format", help="For people: table, markdown, html (a page with series). For programs: csv, json."
)
_OUTPUT = output_flag("--output", "-o")

app = typer.Typer(add_completion=False)


class Asked(Record, frozen=True, kw_only=True):
    results: Path
    format: Format = "table"
    output: Path | None = None


def parse(argv: Sequence[str]) -> Asked | None:
    """Parse the command line; None after printing help. Raises UsageError."""
    asked = command(app, argv, NAME)
    return asked if isinstance(asked, Asked) else None


@app.command()
def history(
    results: Annotated[Path, _RESULTS] = Path("results"),
    format_: Annotated[Format, _FORMAT] = "table",
    output: Annotated[Path | None, _OUTPUT] = None,
) -> Asked:
    """List all runs of a folder: when, on what, with which settings, how fast, and which may be compared."""
    return Asked(results=results, format=format_, output=output)
