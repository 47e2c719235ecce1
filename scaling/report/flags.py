"""argv -> Asked; every flag of the report is declared here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from scaling.command import command, show
from scaling.records.point import Record
from scaling.report import schema

NAME = "scaling.report"
Format = Literal["table", "markdown", "csv", "json"]

_RUNS = typer.Argument(help="Run folders, or their run.jsonl.", metavar="RUN", show_default=False)
_FORMAT = typer.Option("--format", help="For people: table, markdown. For programs: csv, json.")
_JOIN = typer.Option("--join", help="Put runs into one table although hosts, devices, versions or code differ.")
_OUTPUT = typer.Option("--output", help="Write to this file.", metavar="FILE", show_default="stdout")

app = typer.Typer(add_completion=False)


def _print_schema(wanted: bool) -> None:
    """Instead of any report; no RUN is needed."""
    if wanted:
        show(schema.text())
        raise typer.Exit


_SCHEMA = typer.Option(
    "--schema", help="Print the JSON Schema of --format json.", callback=_print_schema, is_eager=True
)


class Asked(Record, frozen=True, kw_only=True):
    """What the command line asks for."""

    runs: tuple[Path, ...]
    format: Format = "table"
    join: bool = False
    output: Path | None = None


def parse(argv: Sequence[str]) -> Asked | None:
    """Read the command line; None after printing help. Raises UsageError."""
    asked = command(app, argv, NAME)
    return asked if isinstance(asked, Asked) else None


@app.command()
def report(
    runs: Annotated[list[Path], _RUNS],
    format_: Annotated[Format, _FORMAT] = "table",
    join_: Annotated[bool, _JOIN] = False,
    output: Annotated[Path | None, _OUTPUT] = None,
    schema_: Annotated[bool, _SCHEMA] = False,
) -> Asked:
    """Tabulate runs of scaling.run: images/s, speedup, efficiency, and where the loss went."""
    return Asked(runs=tuple(runs), format=format_, join=join_, output=output)
