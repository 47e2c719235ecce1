"""`python -m scaling.lab up|down|status|run|rate`: a cluster on this machine, of namespaces and shaped links."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from scaling.command import complain
from scaling.errors import Interrupted, ScalingError
from scaling.lab import flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. Users' mistakes are one line on stderr."""
    try:
        return flags.run_command(sys.argv[1:] if argv is None else argv)
    except ScalingError as error:
        complain(error, flags.NAME)
        return error.exit_code
    except Interrupted as stop:  # Ctrl-C, outside of a run
        return stop.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
