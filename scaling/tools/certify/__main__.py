"""The certify command, `mpirun -np 16 python -m scaling certify`. Rank 0 leads; the other ranks serve."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from scaling.command import asked_or_code, complain
from scaling.errors import Interrupted, LaunchError, ScalingError
from scaling.text import signal_name
from scaling.tools.certify import NAME
from scaling.transport.base import Cluster
from scaling.transport.launch import Signals, abort, as_rank

if TYPE_CHECKING:
    from scaling.tools.certify.flags import Asked
    from scaling.tools.check.facts import Findings


def main(argv: Sequence[str] | None = None) -> int:
    return as_rank(_rank, _read, _devices, NAME, argv)


def _rank(cluster: Cluster, signals: Signals, argv: Sequence[str], asked: Asked | int | None) -> int:
    from scaling.run import ranks  # slow to import; --help does not need it
    from scaling.tools.check import lead as preflight

    prober = preflight.begin(cluster, signals)
    if cluster.rank != 0:
        prober.serve()
        return ranks.serve(cluster, signals)
    from scaling.tools.certify import leading
    from scaling.tools.certify.flags import Asked

    found: Findings | int | None
    try:
        with preflight.leading(cluster, prober, goes_on=True) as lead:
            found = leading.preflight(lead, asked) if isinstance(asked, Asked) else asked
    except LaunchError as error:
        complain(error, NAME)
        abort(cluster, error.exit_code)  # MPI's finalize would wait for silent ranks
        return error.exit_code
    except ScalingError as error:
        complain(error, NAME)
        found = error.exit_code
    except Interrupted as stop:
        complain("ended in its preflight", NAME, signal_name(stop.number))
        found = stop.exit_code
    if isinstance(found, int):
        return ranks.lead(cluster, signals, found, argv, NAME)
    assert asked is not None and not isinstance(asked, int)
    work = partial(leading.certify, asked=asked, found=found)
    return ranks.lead(cluster, signals, work, argv, NAME)


def _devices(asked: Asked) -> tuple[int, str]:
    from scaling.hosts import info

    return info.devices(asked.invocation.device)


def _read(argv: Sequence[str]) -> Asked | int:
    from scaling.tools.certify import flags  # only rank 0 needs Typer

    return asked_or_code(flags.parse, argv, NAME)


if __name__ == "__main__":
    sys.exit(main())
