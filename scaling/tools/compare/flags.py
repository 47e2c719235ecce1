"""The flags of `compare`; `parse` turns argv into `Asked`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from typer import Argument, Option

from scaling.command import command, output_flag, with_fields
from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.tools.compare import found

NAME = "scaling compare"
Format = Literal["table", "markdown", "json", "junit", "github-action-benchmark"]
# also accepts names with "image"
Metric = Literal[found.Name, "images_per_s", "j_per_image"]
_NAMES: Mapping[Metric, found.Name] = {
    **{name: name for name in found.METRICS},
    "images_per_s": "samples_per_s",
    "j_per_image": "j_per_sample",
}
_AGAINST = "--against"
EPILOG = (
    "Exit codes: 0 nothing slower, 1 a cell slower or newly failed, 2 a mistake in the call or nothing that could "
    "be compared, 3 with --require-proof: nothing slower, but a cell is undecided. With three runs a side, "
    "intervals are over runs and include how launches differ. With fewer, older runs show that; else 0.5 % is "
    "assumed."
)

_RUNS = Argument(
    help="BASE NEW, folders or archives; or the new runs, with --against.", metavar="RUN...", show_default=False
)
_BASE = Option(_AGAINST, help="The runs before the change.", metavar="BASE...", show_default=False)
_METRIC = Option(
    "--metric",
    help=f"What to compare: {', '.join(get_args(Metric))}. In efficiency the drift of the machine cancels.",
    metavar="NAME",
)
_FAIL_ABOVE = Option("--fail-above", help="The loss that counts, in percent.", metavar="PERCENT")
_PROOF = Option("--require-proof", help="Exit with 3 if nothing is slower but a cell is undecided.")
_HISTORY = Option(
    "--history",
    help="A folder of older runs, which show how launches differ if a side has fewer than three runs.",
    metavar="DIR",
    show_default="the folder of BASE, its runs up to BASE",
)
_ALTHOUGH = Option("--although-different", help="Compare although work, devices, versions or placement differ.")
_FORMAT = Option(
    "--format",
    help="table, markdown (a comment, a CI summary), json, junit, github-action-benchmark.",
    metavar="NAME",
)
_PRICES = Option(
    "--prices", help="What machines cost, for --metric cost.", metavar="FILE", envvar="SCALING_PRICES"
)

app = typer.Typer(add_completion=False)


class Asked(Record, frozen=True, kw_only=True):
    """The parsed command line."""

    runs: Annotated[list[Path], _RUNS]
    against: Annotated[list[Path] | None, _BASE] = None
    metric: Annotated[Metric, _METRIC] = "efficiency"
    fail_above: Annotated[str, _FAIL_ABOVE] = "2%"
    require_proof: Annotated[bool, _PROOF] = False
    history: Annotated[Path | None, _HISTORY] = None
    although_different: Annotated[bool, _ALTHOUGH] = False
    format: Annotated[Format, _FORMAT] = "table"
    output: Annotated[Path | None, output_flag("--output", "-o")] = None
    prices: Annotated[Path | None, _PRICES] = None

    @property
    def base(self) -> list[Path]:
        return self.against or self.runs[:1]

    @property
    def new(self) -> list[Path]:
        return self.runs if self.against else self.runs[1:]

    @property
    def quantity(self) -> found.Name:
        """Return the metric under its own name."""
        return _NAMES[self.metric]

    @property
    def loss(self) -> float:
        """Return the loss that counts as a fraction. Raises UsageError outside 0 to below 100 percent."""
        return _fraction(self.fail_above)


def parse(argv: Sequence[str]) -> Asked | None:
    """Parse the command line; None after printing help. Raises UsageError."""
    asked = command(app, list(_spread(argv)), NAME)
    return asked if isinstance(asked, Asked) else None


def _spread(argv: Sequence[str]) -> Iterator[str]:
    """Turn `--against A B` and `--against=A B` into `--against A --against B`, up to the next option."""
    takes = None
    for word in argv:
        if word.startswith("-"):
            takes = int("=" in word) if word.partition("=")[0] == _AGAINST else None
        elif takes is not None:
            if takes:
                yield _AGAINST
            takes += 1
        yield word


def _fraction(text: str) -> float:
    """Parse `2%` or `2` as 0.02. Raises UsageError outside 0 to below 100 percent."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = float("nan")
    if not isfinite(value) or not 0 <= value < 100:
        raise UsageError(f"--fail-above {text}: give a loss of 0 to below 100 percent, like 2%")
    return value / 100


@app.command(epilog=EPILOG)
@with_fields(Asked)
def compare(**given: Any) -> Asked:
    """Compare runs from before and after a change, and find the cells that became slower.

    One run a side:
        python -m scaling compare BASE NEW
    Three runs a side, whose intervals include how launches differ:
        python -m scaling compare NEW1 NEW2 NEW3 --against BASE1 BASE2 BASE3
    A gate in CI:
        python -m scaling compare BASE NEW --fail-above 5% --format junit
    """
    asked = Asked(**given)
    if not asked.against and len(asked.runs) != 2:
        raise UsageError(
            f"RUN: {len(asked.runs)} without --against: give BASE NEW, or the new runs and --against BASE..."
        )
    if asked.metric == "cost" and asked.prices is None:
        raise UsageError("--metric cost: needs --prices FILE")
    _fraction(asked.fail_above)
    return asked
