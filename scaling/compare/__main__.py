"""`python -m scaling.compare BASE NEW`: whether a change made training slower, and an exit code that says so."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from scaling.command import deliver, obey
from scaling.compare import flags
from scaling.compare.comparing import compare
from scaling.compare.document import document
from scaling.compare.flags import NAME, Asked
from scaling.compare.formats import benchmark, json, junit
from scaling.compare.found import Found
from scaling.errors import UsageError
from scaling.report.formats import markdown, terminal

SLOWER, MISTAKE, UNTOLD = 1, UsageError.exit_code, 3
EMPTY = "RUN: no cell could be compared, so that nothing could have been found slower; the reasons stand above"


def exit_code(found: Found, *, require_proof: bool) -> int:
    """0, 1 where something became slower, 2 where nothing could be compared, 3 where proof is asked for and
    lacks."""
    if found.is_lost:
        return SLOWER
    if found.is_empty:
        return MISTAKE
    return UNTOLD if require_proof and found.is_untold else 0


def rendered(found: Found, asked: Asked, code: int) -> str:
    """The comparison in the format asked for."""
    match asked.format:
        case "table":
            color = asked.output is None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
            return terminal.draw(document(found), color=color)
        case "markdown":
            return markdown.draw(document(found, verdict_first=True))
        case "json":
            return json.render(found, code)
        case "junit":
            return junit.render(found, require_proof=asked.require_proof)
        case "github-action-benchmark":
            return benchmark.render(found)


def _compared(asked: Asked) -> int:
    found = compare(
        asked.base,
        asked.new,
        metric=asked.metric,
        fail_above=asked.fail_above,
        although_different=asked.although_different,
        price_file=asked.prices,
    )
    code = exit_code(found, require_proof=asked.require_proof)
    deliver(rendered(found, asked, code), asked.output)
    if code == MISTAKE:
        raise UsageError(EMPTY)
    return code


def _act(argv: Sequence[str]) -> int:
    asked = flags.parse(argv)
    return _compared(asked) if asked else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. Users' mistakes are one line on stderr."""
    try:
        return obey(_act, argv, NAME)
    except Exception:  # a bug; Python's own exit code would say that something became slower
        traceback.print_exc()
        return MISTAKE


if __name__ == "__main__":
    raise SystemExit(main())
