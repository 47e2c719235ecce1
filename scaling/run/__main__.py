"""main(): connect to MPI; rank 0 reads the command line and leads, the others serve.

mpirun -np 16 python -m scaling.run
"""

from __future__ import annotations

import signal

if __name__ == "__main__":  # no signal ends a rank before `Signals`: the others may wait for it
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP))

import os
import sys
from collections.abc import Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, TextIO

from scaling.command import asked_or_code, open_streams
from scaling.errors import UsageError
from scaling.help import HELP, HELP_ALL
from scaling.run import NAME
from scaling.transport.base import Cluster
from scaling.transport.launch import ENDING, Signals, as_rank
from scaling.transport.start import SCRIPT_FOLLOWS, asked, launched

if TYPE_CHECKING:
    from scaling.run.invocation import Invocation

SHOWN = {*HELP, HELP_ALL, "--version"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run this rank; return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    code = _shown(words)
    if code is None:
        code = as_rank(_rank, _read, _devices, NAME, words)
    _let_go(sys.stdout)
    _let_go(sys.stderr)
    return code


def _shown(argv: Sequence[str]) -> int | None:
    """Answer help and `--version` without MPI, which takes a second to start; None under a launcher."""
    own = argv[: argv.index(SCRIPT_FOLLOWS)] if SCRIPT_FOLLOWS in argv else argv
    if not SHOWN.intersection(own) or launched(os.environ) or "PMIX_RANK" in os.environ:
        return None
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    open_streams()
    try:
        found = _read(asked(argv).rest)
    except UsageError:
        return None
    return found if isinstance(found, int) else None


def _let_go(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _rank(cluster: Cluster, signals: Signals, argv: Sequence[str], asked: Invocation | int | None) -> int:
    from scaling.run import ranks  # slow to import; --help does not need it

    if asked is None:
        return ranks.serve(cluster, signals)
    work = asked if isinstance(asked, int) else methodcaller("obey", asked)
    return ranks.lead(cluster, signals, work, argv)


def _devices(asked: Invocation) -> tuple[int, str]:
    from scaling.hosts import info

    return info.devices(asked.device)


def _read(argv: Sequence[str]) -> Invocation | int:
    from scaling.run import flags

    try:
        return asked_or_code(flags.parse, argv, NAME)
    except flags.Shown:
        return 0


if __name__ == "__main__":
    sys.exit(main())
