"""The flags of `bisect`: `--noise`, and the flags of scaling.run that describe the exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from scaling.command import command
from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.run.flags import USUAL, View, checked_view, given, with_fields
from scaling.run.invocation import Invocation, fields
from scaling.tools.bisect import NAME
from scaling.transport import start

EPILOG = (
    "Exit codes: 0 the search ended, 1 a point failed, 2 a mistake in the call, 130 Ctrl-C, 143 SIGTERM, "
    "129 SIGHUP."
)
KINDS = ["exchange", "solo", "together", "comm"]
# default of --rounds
ROUNDS = 3

_ROUNDS = typer.Option(
    help="How often each point of the proof is measured, each time in new processes.", metavar="N"
)
_NOISE = typer.Option(
    help="Variation of healthy nodes between starts, in percent; nodes that are slower by less than twice that "
    "are not searched.",
    metavar="PERCENT",
    show_default="estimated from windows",
)

app = typer.Typer(add_completion=False)


class Asked(Record, frozen=True, kw_only=True):
    """The parsed command line. `noise` is a fraction of 1, None to estimate it from windows."""

    invocation: Invocation
    noise: float | None = None


def parse(argv: Sequence[str]) -> Asked | None:
    """Parse the command line; None after printing help. Raises UsageError."""
    asked = command(app, argv, NAME, usual=("rounds", "noise", *USUAL))
    return asked if isinstance(asked, Asked) else None


# flags of scaling.run in the order of --help; the search sets the other fields
EXCHANGE = (
    "script", "label", "unit", "samples_per_step", "in_place",
    "strategy", "model", "data", "data_dir", "device", "shrink", "dilate", "batch_size", "precision", "option",
    "interconnect", "fabric", "cpus_per_rank", "windows", "window_s", "seed", "startup_timeout_s",
    "stall_timeout_s", "point_timeout_s", "results", "name",
)  # fmt: skip


@app.command(epilog=f"{start.ABOUT}\n\n{EPILOG}")
@with_fields(EXCHANGE, name="bisect")
def bisect(
    context: typer.Context,
    rounds: Annotated[int, _ROUNDS] = ROUNDS,
    noise: Annotated[float | None, _NOISE] = None,
    view: View = "auto",
    **flags: Any,
) -> Asked:
    """Find the node that makes the others wait, and what its removal would bring. It needs three nodes or more.

    A cluster, its nodes in a hostfile, one rank per device:
        mpirun -np 16 --hostfile hostfiles/4x4 python -m scaling bisect
    The exchange in question:
        mpirun -np 16 python -m scaling bisect --strategy torch:gloo
    Nodes that vary by 3 % between starts:
        mpirun -np 16 python -m scaling bisect --noise 3

    Suspects are nodes that compute slowly and paths that carry little. Groups of nodes then exchange gradients at
    the same time, until the slow nodes are known. In the same rounds the proof measures all nodes, all without
    the slow ones, and all without as many healthy ones.
    """
    if noise is not None and not 0 < noise <= 50:
        raise UsageError(f"--noise {noise:g}: not between 0 and 50 percent; write for example --noise 3")
    told = {"name": "bisect", "rounds": ROUNDS, **fields(given(context), None)}
    # Nobody but the script knows its gradients.
    told["kinds"] = [one for one in KINDS if one != "comm" or "script" not in told]
    invocation = Invocation(given=told, base={}, view=checked_view(view))
    return Asked(invocation=invocation, noise=None if noise is None else noise / 100)
