"""`python -m scaling history RESULTS_DIR`: all runs of a folder, a line each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from string import ascii_uppercase

from msgspec.structs import replace

from scaling.command import deliver, obey
from scaling.errors import UsageError
from scaling.report.formats import markdown, terminal
from scaling.text import readable
from scaling.tools.history import flags, formats
from scaling.tools.history.document import document
from scaling.tools.history.flags import NAME, Asked
from scaling.tools.history.lines import RunLine, Unreadable, read

# ---------------------------------------------------------------- groups
#
# Which runs are comparable: they get one letter.


def lettered(lines: Sequence[RunLine]) -> list[RunLine]:
    """The same lines, each with the letter of its group; one that measured no exchange is like no other."""
    measured = dict.fromkeys(line.conditions for line in lines if line.world_sizes)
    letters = {conditions: letter(place) for place, conditions in enumerate(measured)}
    return [replace(line, like=letters[line.conditions] if line.world_sizes else "") for line in lines]


def letter(place: int) -> str:
    """A to Z, then AA, AB, ..."""
    more, last = divmod(place, len(ascii_uppercase))
    return (letter(more - 1) if more else "") + ascii_uppercase[last]


# ---------------------------------------------------------------- main


def rendered(asked: Asked) -> str:
    """The history in the format asked for. Raises UsageError for what a terminal cannot show."""
    if asked.format == "html" and asked.output is None and sys.stdout.isatty():
        raise UsageError("--format html: not for a terminal; add --output FILE.html")
    found, unreadable = read(asked.results, all_exchanges=asked.format == "html")
    lines = lettered(found)
    match asked.format:
        case "json":
            return formats.json(lines, unreadable)
        case "csv":
            return formats.csv(lines)
        case "html":
            return _page(asked, lines, unreadable)
        case "markdown":
            return markdown.draw(document(str(asked.results), lines, unreadable))
        case "table":
            color = asked.output is None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
            return terminal.draw(document(str(asked.results), lines, unreadable), color=color)


def _page(asked: Asked, lines: Sequence[RunLine], unreadable: Sequence[Unreadable]) -> str:
    """Its libraries take longer to import than a table to make."""
    try:
        from scaling.tools.history import page
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed: pip install matplotlib jinja2"
        raise UsageError(f"--format html: {missing}") from None
    return page.render(readable(asked.results.resolve().name), lines, unreadable)


def _act(argv: Sequence[str]) -> None:
    if asked := flags.parse(argv):
        deliver(rendered(asked), asked.output)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. Users' mistakes are one line on stderr."""
    return obey(_act, argv, NAME)


if __name__ == "__main__":
    raise SystemExit(main())
