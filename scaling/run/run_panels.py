"""The flags of a run that say how long it may take, where it is kept, and what to do but measure: as panels.py."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from scaling import __version__

LIMITS, OUT, RUNS = "Time limits", "Output", "Runs"
_limit = partial(typer.Option, rich_help_panel=LIMITS)
_out = partial(typer.Option, rich_help_panel=OUT)
_runs = partial(typer.Option, rich_help_panel=RUNS)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"scaling {__version__}")
        raise typer.Exit


# ---------------------------------------------------------------- time limits

StartupTimeoutS = Annotated[
    float | None,
    _limit(
        help="Seconds until a worker must be ready, and for its first step.",
        show_default="300, on GPUs 600; twice that with --compile; 2700 for TensorFlow on GPUs newer than it is",
    ),
]
StallTimeoutS = Annotated[float, _limit(help="Seconds that a worker may say nothing.")]
PointTimeoutS = Annotated[
    float | None,
    _limit(
        help="Seconds that a point may take in all.", show_default="1800, and what the start may take beyond 300"
    ),
]

# ---------------------------------------------------------------- output

Results = Annotated[str, _out(help="Folder of all runs.", metavar="DIR")]
Name = Annotated[str, _out(help="Ends the run's folder name.")]
View = Annotated[
    str,
    _out(
        help="live draws a screen, plain prints a line per event, none nothing.",
        metavar="HOW",
        envvar="SCALING_VIEW",
    ),
]

Page = Annotated[
    bool,
    _out("--page/--no-page", help="Write page.html beside run.jsonl when the run ends.", envvar="SCALING_PAGE"),
]

# ---------------------------------------------------------------- runs

Config = Annotated[
    Path | None,
    _runs(
        help="TOML file of these flags' names (world_sizes = [1, 2]); flags win.",
        metavar="FILE",
        show_default="none",
    ),
]
Resume = Annotated[Path | None, _runs(help="Measure what a run still lacks.", metavar="RUN", show_default="none")]
Like = Annotated[
    Path | None,
    _runs(help="A new run with the settings of an older one; flags win.", metavar="RUN", show_default="none"),
]
Against = Annotated[
    str | None,
    _runs(
        help="RUN: a new run as --like, then compared with that one, cell by cell (scaling compare). REV, a git "
        "revision of this package: each strategy a second time in the same launch, its workers from there.",
        metavar="RUN|REV",
        show_default="none",
    ),
]
DryRun = Annotated[bool, _runs("--dry-run", help="Print the plan and what is missing; measure nothing.")]
ListAll = Annotated[bool, _runs("--list", help="Print strategies, models and data, and what each lacks here.")]
Version = Annotated[bool, _runs("--version", help="Print the version.", callback=_version, is_eager=True)]
