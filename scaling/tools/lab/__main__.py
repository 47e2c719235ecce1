"""`python -m scaling lab up|down|status|run|rate`: a cluster on this machine, of namespaces and shaped links."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.command import obey
from scaling.tools.lab import flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. Users' mistakes are one line on stderr."""
    return obey(flags.run_command, argv, flags.NAME)


if __name__ == "__main__":
    raise SystemExit(main())
