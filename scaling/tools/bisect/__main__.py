"""The bisect command, `mpirun -np 16 python -m scaling bisect`. Rank 0 leads the search; the other ranks serve."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scaling.command import asked_or_code
from scaling.tools.bisect import NAME
from scaling.transport.base import Cluster
from scaling.transport.launch import Signals, as_rank

if TYPE_CHECKING:
    from scaling.tools.bisect.flags import Asked


def main(argv: Sequence[str] | None = None) -> int:
    return as_rank(_rank, _read, _devices, NAME, argv)


def _rank(cluster: Cluster, signals: Signals, argv: Sequence[str], asked: Asked | int | None) -> int:
    from scaling.run import ranks  # slow to import; --help does not need it

    if asked is None:
        return ranks.serve(cluster, signals)
    if isinstance(asked, int):
        return ranks.lead(cluster, signals, asked, argv, NAME)
    from scaling.tools.bisect import leading

    return ranks.lead(cluster, signals, lambda lead: leading.bisect(lead, asked), argv, NAME)


def _devices(asked: Asked) -> tuple[int, str]:
    from scaling.hosts import info

    return info.devices(asked.invocation.device)


def _read(argv: Sequence[str]) -> Asked | int:
    from scaling.tools.bisect import flags  # only rank 0 needs Typer

    return asked_or_code(flags.parse, argv, NAME)


if __name__ == "__main__":
    sys.exit(main())
