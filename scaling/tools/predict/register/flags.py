"""argv -> Asked of what is predicted before it is measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from scaling.command import command
from scaling.records.point import Record

NAME = "scaling predict register"

_RUN = typer.Argument(help="A run's folder, or its run.jsonl.", metavar="RUN", show_default=False)

app = typer.Typer(add_completion=False)


class Asked(Record, frozen=True, kw_only=True):
    """What the command line asks for."""

    run: Path


def parse(argv: Sequence[str]) -> Asked | None:
    """Read the command line; None after printing help. Raises UsageError."""
    asked = command(app, argv, NAME)
    return asked if isinstance(asked, Asked) else None


@app.command()
def register(run: Annotated[Path, _RUN]) -> Asked:
    """Predict the points that stand as JSON on standard input; print a prediction of each as JSON.

    `scaling.run --predict-first` asks so, and keeps the answers in the run before it measures the points.
    """
    return Asked(run=run)
