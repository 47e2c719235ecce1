"""The flags of `certify`: the line and the budget, and the flags of scaling.run that describe the exchange."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

from scaling.analysis.statistics.intervals import FIRST_ROUNDS
from scaling.command import check_output, command
from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.report import reference, signature
from scaling.report.reference import Reference
from scaling.run.flags import USUAL, DryRun, Metrics, Page, Verbose, View, checked_view, given, with_fields
from scaling.run.invocation import Invocation, fields
from scaling.tools.bisect.flags import EXCHANGE
from scaling.tools.certify import NAME
from scaling.transport import start

EPILOG = "Exit codes: 0 PASS, 1 FAIL, 3 NO VERDICT, 2 a mistake in the call, 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP."
MINUTES = 30.0
MOST_MINUTES = 7 * 24 * 60.0
LINE = "95%"
# Lines below LEAST_LINE are fractions written as percent; lines below USUAL_LINE need --line-really.
LEAST_LINE, USUAL_LINE = 2.0, 50.0

app = typer.Typer(add_completion=False)


class Asked(Record, frozen=True, kw_only=True):
    """The parsed command line. `line` is a fraction of 1, `minutes` the budget from the process's start."""

    invocation: Invocation
    line: float
    minutes: float
    reference: Reference | None = None
    reference_name: str = ""
    junit: Path | None = None
    archive: Path | None = None
    sign: Path | None = None


def parse(argv: Sequence[str]) -> Asked | None:
    """Parse the command line; None after printing help. Raises UsageError."""
    usual = ("line", "line_really", "reference_", "minutes", "junit", "archive", "sign", *USUAL)
    asked = command(app, argv, NAME, usual=usual)
    return asked if isinstance(asked, Asked) else None


def line_of(text: str, *, really: bool = False) -> float:
    """Parse `95%` or `95` as 0.95. Raises UsageError outside 2 to 100 percent, and below 50 unless `really`."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = float("nan")
    if not isfinite(value) or not LEAST_LINE <= value <= 100:
        raise UsageError(f"--line {text}: give a percentage from {LEAST_LINE:g} to 100, like {LINE}")
    if value < USUAL_LINE and not really:
        raise UsageError(f"--line {text}: nearly every machine reaches {value:g} %; --line-really accepts it")
    return value / 100


# flags of scaling.run in the order of --help; the verdict sets the other fields
_FIELDS = (*(name for name in EXCHANGE if name not in ("windows", "window_s")), "anonymous")


_LINE = typer.Option(
    help="The efficiency of all devices that passes, in percent of linear scaling; with --reference, in percent "
    "of the reference's rates and efficiencies.",
    metavar="PERCENT",
)
_REALLY = typer.Option("--line-really", help=f"Accept a --line below {USUAL_LINE:g} %.")
_REFERENCE = typer.Option(
    "--reference",
    help="What a like machine reached: a file that scaling report RUN --format reference made, or one of the "
    f"package: {', '.join(reference.packaged())}.",
    metavar="FILE",
)
_MINUTES = typer.Option(help="The time after which there is NO VERDICT, in minutes.", metavar="M")
_JUNIT = typer.Option(help="Write the verdict to this file as JUnit.", metavar="FILE")
_ARCHIVE = typer.Option(
    help="Pack the run with its logs, preflight and verdict into this .tgz, which scaling report opens.",
    metavar="FILE",
)
_SIGN = typer.Option(
    help="Sign the run, its preflight and its verdict with this SSH key; scaling report --signed-by checks it.",
    metavar="KEY",
)


@app.command(epilog=f"{start.ABOUT}\n\n{EPILOG}")
@with_fields(_FIELDS, name="certify")
def certify(
    context: typer.Context,
    line: Annotated[str, _LINE] = LINE,
    line_really: Annotated[bool, _REALLY] = False,
    reference_: Annotated[str | None, _REFERENCE] = None,
    minutes: Annotated[float, _MINUTES] = MINUTES,
    junit: Annotated[Path | None, _JUNIT] = None,
    archive: Annotated[Path | None, _ARCHIVE] = None,
    sign: Annotated[Path | None, _SIGN] = None,
    metrics: Metrics = None,
    view: View = "auto",
    page: Page = True,
    verbose: Verbose = False,
    dry_run: DryRun = False,
    **_: Any,
) -> Asked:
    """Give PASS, FAIL or NO VERDICT on a cluster, and name the device, link or node that fails.

    A cluster, its nodes in a hostfile, one rank per device:
        mpirun -np 16 --hostfile hostfiles/4x4 python -m scaling certify
    Another line, and less time:
        mpirun -np 16 python -m scaling certify --line 90% --minutes 5
    Against what a like machine reached:
        mpirun -np 8 python -m scaling certify --reference h200

    Devices and links are measured first. Then rounds follow until the verdict is decided. A false FAIL and a
    false PASS have a probability of 1 % each. The nearer the line, the more rounds a PASS takes.
    """
    if not isfinite(minutes) or not 0 < minutes <= MOST_MINUTES:
        allowed = f"not between 0 and {MOST_MINUTES:g}; write for example --minutes 15"
        raise UsageError(f"--minutes {minutes:g}: {allowed}")
    for flag, file in (("--junit", junit), ("--archive", archive), ("--metrics", metrics)):
        if file is not None:
            check_output(file, flag)
    if sign is not None:
        signature.check_key(sign)
    told = {"name": "certify", **fields(given(context), None), "rounds": FIRST_ROUNDS, "soak_s": 0.0}
    out: dict[str, Any] = {"page": page, "verbose": verbose, "dry_run": dry_run, "metrics": metrics}
    return Asked(
        invocation=Invocation(given=told, base={}, view=checked_view(view), **out),
        line=line_of(line, really=line_really),
        minutes=minutes,
        reference=None if reference_ is None else reference.read(reference_),
        reference_name=reference_ or "",
        junit=junit,
        archive=archive,
        sign=sign,
    )
