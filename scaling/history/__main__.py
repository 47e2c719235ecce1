"""`python -m scaling.history RESULTS_DIR`: all runs of a folder, a line each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from scaling.command import complain, deliver, open_streams
from scaling.errors import Interrupted, ScalingError
from scaling.history import flags, formats
from scaling.history.document import document
from scaling.history.flags import NAME, Asked
from scaling.history.groups import lettered
from scaling.history.lines import read
from scaling.report.formats import markdown, terminal


def rendered(asked: Asked) -> str:
    """The history in the format asked for."""
    found, unreadable = read(asked.results)
    lines = lettered(found)
    match asked.format:
        case "json":
            return formats.json(lines, unreadable)
        case "csv":
            return formats.csv(lines)
        case "markdown":
            return markdown.draw(document(str(asked.results), lines, unreadable))
        case "table":
            color = asked.output is None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
            return terminal.draw(document(str(asked.results), lines, unreadable), color=color)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. Users' mistakes are one line on stderr."""
    open_streams()
    try:
        asked = flags.parse(sys.argv[1:] if argv is None else argv)
        if asked is not None:
            deliver(rendered(asked), asked.output)
    except ScalingError as error:
        complain(error, NAME)
        return error.exit_code
    except Interrupted as stop:
        return stop.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
