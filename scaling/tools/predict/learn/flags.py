"""argv -> Asked of the learning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from scaling.command import command
from scaling.records.point import Record
from scaling.tools.predict.priors import FILE

NAME = "scaling predict learn"

_PUBLISHED = typer.Argument(help="A JSON array of published series.", metavar="PUBLISHED", show_default=False)
_OUTPUT = typer.Option("--output", help="Where the priors go.", metavar="FILE", show_default="the package's own")

app = typer.Typer(add_completion=False)


class Asked(Record, frozen=True, kw_only=True):
    """What the command line asks for."""

    published: Path
    output: Path = FILE


def parse(argv: Sequence[str]) -> Asked | None:
    """Read the command line; None after printing help. Raises UsageError."""
    asked = command(app, argv, NAME)
    return asked if isinstance(asked, Asked) else None


@app.command()
def learn(
    published: Annotated[Path, _PUBLISHED],
    output: Annotated[Path, _OUTPUT] = FILE,
) -> Asked:
    """Learn the priors of scaling predict from published series of trust A and B, and write their file."""
    return Asked(published=published, output=output)
