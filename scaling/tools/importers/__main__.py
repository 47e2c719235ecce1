"""The import command, `python -m scaling import LOG... -o RUN`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence

import scaling
from scaling.command import complain, has_color, open_streams, show
from scaling.errors import Interrupted, ScalingError, UsageError
from scaling.records import store
from scaling.records.run import SCHEMA, Header
from scaling.report.formats import terminal
from scaling.text import readable
from scaling.tools.importers import flags
from scaling.tools.importers.flags import NAME, Asked
from scaling.tools.importers.tools import Unknown, of_one_work, read_all


def imported(asked: Asked, argv: Sequence[str], unix_s: float) -> Header:
    found = read_all(asked.logs, asked.tool)
    return Header(
        schema=SCHEMA, version=scaling.__version__, code="", git="", created_unix_s=unix_s,
        command=("python", "-m", NAME, *map(readable, argv)),
        launch_size=0, mpi="", seed=0, config={}, hosts=(), host_of_rank=(), device="cpu",
        imported=of_one_work([row for one in found for row in one.rows], asked.same_work, asked.base),
        bandwidths=tuple(row for one in found for row in one.bandwidths),
    )  # fmt: skip


def _write(asked: Asked, argv: Sequence[str]) -> None:
    if os.path.lexists(asked.output):
        raise UsageError(f"--output {asked.output}: exists already; name a folder that does not")
    header = imported(asked, argv, time.time())
    store.create_import(asked.output, header)
    show(terminal.render(header, (), color=has_color()))


def main(argv: Sequence[str] | None = None) -> int:
    open_streams()
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if asked := flags.parse(arguments):
            _write(asked, arguments)
    except ScalingError as error:
        complain(error, NAME)
        for hint in error.hints if isinstance(error, Unknown) else ():
            sys.stderr.write(f"{readable(hint)}\n")
        return error.exit_code
    except Interrupted as stop:
        return stop.exit_code
    except KeyboardInterrupt:  # while reading a log: nothing is written yet
        return Interrupted(signal.SIGINT).exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
