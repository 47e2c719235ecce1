"""`python -m scaling.report RUN...`: the report of finished, running or broken-off runs, from their files."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from scaling.analysis.joining import join, joinable
from scaling.command import complain, deliver, open_streams
from scaling.errors import Interrupted, ScalingError, UsageError
from scaling.records.run import Header, PointRecord
from scaling.records.store import folder_of, load
from scaling.report import flags
from scaling.report.flags import NAME, Asked, Format
from scaling.report.formats import csv, json, markdown, terminal


class Joined:
    """The runs of one report: the first one's header with the hosts of all, the records of all, and
    what the table must say about them (nothing when it is one run)."""

    def __init__(self, paths: Sequence[Path], *, although_different: bool) -> None:
        """Raises UsageError when runs differ and need not, or one is given twice; StoreError and
        UsageError when one cannot be read."""
        if len({folder_of(path).resolve() for path in paths}) < len(paths):
            raise UsageError("RUN: the same run is given twice")
        runs = [load(path) for path in paths]
        headers = [header for header, _ in runs]
        reasons = joinable(headers)
        if reasons and not although_different:
            raise UsageError(f"these runs are not alike: {'; '.join(reasons)}; --join tabulates them all the same")
        hosts = {host.hostname: host for header in headers for host in header.hosts}
        self.header: Header = replace(headers[0], hosts=tuple(hosts.values()))
        self.records: tuple[PointRecord, ...] = join([records for _, records in runs])
        names = ", ".join(folder_of(path).name for path in paths)
        several = (f"{len(paths)} runs in one table: {names}",) if len(paths) > 1 else ()
        self.notices = (*several, *(f"joined although {reason}" for reason in reasons))


def report(asked: Asked) -> None:
    """Print the report, or write it into the file asked for."""
    joined = Joined(asked.runs, although_different=asked.join)
    color = asked.output is None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    deliver(rendered(asked.format, joined, color=color), asked.output)


def rendered(kind: Format, joined: Joined, *, color: bool) -> str:
    """The report's text."""
    header, records, notices = joined.header, joined.records, joined.notices
    match kind:
        case "table":
            return terminal.render(header, records, color=color, joined=notices)
        case "markdown":
            return markdown.render(header, records, notices)
        case "csv":
            return csv.render(records)
        case "json":
            return json.render(header, records, notices)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. Users' mistakes are one line on stderr."""
    open_streams()
    try:
        if asked := flags.parse(sys.argv[1:] if argv is None else argv):
            report(asked)
    except ScalingError as error:
        complain(error, NAME)
        return error.exit_code
    except Interrupted as stop:
        return stop.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
