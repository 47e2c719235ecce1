"""The lab command, `python -m scaling lab up|down|status|run|rate`."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.command import obey
from scaling.tools.lab import flags


def main(argv: Sequence[str] | None = None) -> int:
    return obey(flags.run_command, argv, flags.NAME)


if __name__ == "__main__":
    raise SystemExit(main())
