"""`python -m scaling.report RUN...`: the report of finished, running or broken-off runs, from their files."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from msgspec.structs import replace

from scaling.analysis.joining import join, joinable
from scaling.errors import ScalingError, UsageError
from scaling.records.run import Header, PointRecord
from scaling.records.store import folder_of, load
from scaling.report.formats import csv, json, markdown, terminal

NAME = "scaling.report"
# Typer brings its own Click or not, by version: all usage errors are kin of the one that it exports.
_BAD_USAGE: Any = typer.BadParameter.__base__

Format = Literal["table", "markdown", "csv", "json"]

app = typer.Typer(add_completion=False)
_RUNS = typer.Argument(help="Run folders, or their run.jsonl.", metavar="RUN", show_default=False)
_FORMAT = typer.Option("--format", help="For people: table, markdown. For programs: csv, json.")
_JOIN = typer.Option("--join", help="Put runs into one table although hosts, devices, versions or code differ.")
_OUTPUT = typer.Option("--output", help="Write to this file.", metavar="FILE", show_default="stdout")


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


@app.command()
def report(
    runs: Annotated[list[Path], _RUNS],
    format_: Annotated[Format, _FORMAT] = "table",
    join_: Annotated[bool, _JOIN] = False,
    output: Annotated[Path | None, _OUTPUT] = None,
) -> str:
    """Tabulate runs of scaling.run: images/s, speedup, efficiency, and where the loss went."""
    joined = Joined(runs, although_different=join_)
    color = output is None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    text = rendered(format_, joined, color=color)
    if output is None:
        return text
    _write(output, text)
    return ""


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


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {path}: {error.strerror}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. Users' mistakes are one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # closed by the shell
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    try:
        text = typer.main.get_command(app).main(arguments, prog_name=NAME, standalone_mode=False)
    except _BAD_USAGE as error:
        return _refused(error.format_message(), 2)
    except ScalingError as error:
        return _refused(str(error), error.exit_code)
    try:
        _print(text if isinstance(text, str) else "")  # nothing after --help
    except OSError as error:
        _to_nowhere()
        return _refused(f"standard output: {error.strerror}", 1)
    return 0


def _print(text: str) -> None:
    try:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has left
        _to_nowhere()


def _to_nowhere() -> None:
    """What Python flushes at exit must not complain either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refused(message: str, status: int) -> int:
    print(f"{NAME}: error: {' '.join(message.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
