"""The history command, `python -m scaling history RESULTS_DIR`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from scaling.command import deliver, has_color, obey
from scaling.errors import UsageError
from scaling.report.formats import markdown, terminal
from scaling.text import readable
from scaling.tools.history import flags, formats
from scaling.tools.history.flags import NAME, Asked
from scaling.tools.history.formats import document
from scaling.tools.history.lines import RunLine, Unreadable, read


def rendered(asked: Asked) -> str:
    """Render the history. Raises UsageError for HTML on a terminal."""
    if asked.format == "html" and asked.output is None and sys.stdout.isatty():
        raise UsageError("--format html: not for a terminal; add --output FILE.html")
    lines, unreadable = read(asked.results, all_exchanges=asked.format == "html")
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
            return terminal.draw(document(str(asked.results), lines, unreadable), color=has_color(asked.output))


def _page(asked: Asked, lines: Sequence[RunLine], unreadable: Sequence[Unreadable]) -> str:
    """Imports late: the page's libraries load slowly."""
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
    return obey(_act, argv, NAME)


if __name__ == "__main__":
    raise SystemExit(main())
