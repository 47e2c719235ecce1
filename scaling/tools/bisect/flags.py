"""argv -> Asked; the flags of the search are those of scaling.run that say what is exchanged, and --noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from scaling.command import command
from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.run import panels, run_panels
from scaling.run.invocation import Invocation, fields
from scaling.tools.bisect import NAME

EPILOG = (
    "Exit codes: 0 searched, whatever was found; 1 a point failed, 2 a mistake, 130 Ctrl-C, 143 SIGTERM, "
    "129 SIGHUP."
)
KINDS = ["exchange", "solo", "together", "comm"]
# Starts of each point of the proof, unless --rounds.
ROUNDS = 3

app = typer.Typer(add_completion=False)


class Asked(Record, frozen=True, kw_only=True):
    """What the command line asks for; `noise` is a fraction of 1, None for what windows show."""

    invocation: Invocation
    noise: float | None = None


def parse(argv: Sequence[str]) -> Asked | None:
    """Read the command line; None after printing help. Raises UsageError."""
    asked = command(app, argv, NAME)
    return asked if isinstance(asked, Asked) else None


@app.command(epilog=EPILOG)
def bisect(
    context: typer.Context,
    strategy: panels.Strategy = None,
    model: panels.Model = None,
    data: panels.Data = None,
    data_dir: panels.DataDir = None,
    device: panels.Device = "auto",
    shrink: panels.Shrink = None,
    dilate: panels.Dilate = None,
    batch_size: panels.BatchSize = None,
    precision: panels.Precision = None,
    option: panels.Option = None,
    interconnect: panels.Interconnect = "auto",
    fabric: panels.Fabric = None,
    cpus_per_rank: panels.CpusPerRank = None,
    rounds: Annotated[
        int,
        typer.Option(
            help="How often each point of the proof is measured, in processes of their own.", metavar="N"
        ),
    ] = ROUNDS,
    windows: panels.Windows = None,
    window_s: panels.WindowS = None,
    noise: Annotated[
        float | None,
        typer.Option(
            help="By how many percent points of healthy nodes differ from start to start; nodes that are slower "
            "by less than twice that are not searched.",
            metavar="PERCENT",
            show_default="as windows show",
        ),
    ] = None,
    seed: panels.Seed = 1,
    startup_timeout_s: run_panels.StartupTimeoutS = None,
    stall_timeout_s: run_panels.StallTimeoutS = 120.0,
    point_timeout_s: run_panels.PointTimeoutS = None,
    results: run_panels.Results = "results",
    name: run_panels.Name = "bisect",
    view: run_panels.View = "plain",
) -> Asked:
    """Which node makes the others wait, and what would its removal bring? Three nodes at least.

    Start it as the sweep was: mpirun -np 16 python -m scaling bisect

    Suspects are nodes that compute slowly and paths that carry little. Groups of nodes then exchange gradients at
    the same time, until the slow nodes are known. The proof measures all nodes, those without the slow ones and
    those without as many healthy ones in the same rounds.
    """
    if noise is not None and not 0 < noise <= 50:
        raise UsageError(f"--noise {noise:g}: not between 0 and 50 percent; write for example --noise 3")
    if view not in ("live", "plain", "none"):
        raise UsageError(f"--view {view} (or SCALING_VIEW): not one of live, plain, none")
    given = fields(_given(context), None)
    given = {"name": "bisect", "rounds": ROUNDS, **given, "kinds": KINDS}
    invocation = Invocation(given=given, base={}, view=view)  # type: ignore[arg-type]
    return Asked(invocation=invocation, noise=None if noise is None else noise / 100)


def _given(context: typer.Context) -> dict[str, object]:
    """The values of the fields that were given as flags, by field."""
    sources = {
        name: context.get_parameter_source(name) for name in context.params if name not in ("noise", "view")
    }
    return {
        name: context.params[name]
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }
