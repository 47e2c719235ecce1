"""`python -m scaling.history RESULTS_DIR`: all runs of a folder, a line each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from scaling.command import deliver, obey
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


def _act(argv: Sequence[str]) -> None:
    if asked := flags.parse(argv):
        deliver(rendered(asked), asked.output)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. Users' mistakes are one line on stderr."""
    return obey(_act, argv, NAME)


if __name__ == "__main__":
    raise SystemExit(main())
