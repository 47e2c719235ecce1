"""Shared parts of all commands: parse flags, report errors in one line, write output."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cache, partial
from inspect import Parameter, Signature
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast, get_type_hints

import msgspec

from scaling import files
from scaling.errors import Interrupted, ScalingError, StoreError, UsageError
from scaling.help import HELP, HELP_ALL, page, refusal
from scaling.text import one_line, readable

if TYPE_CHECKING:
    import typer

# The run's file name, as in records/store.py (not imported here). --output never overwrites such a file.
KEPT = "run.jsonl"
# The file whose message torchrun shows at its end, below a traceback of its own.
TORCHRUN_SHOWS = "TORCHELASTIC_ERROR_FILE"


def command(
    app: typer.Typer, argv: Sequence[str], name: str, program: str = "", usual: Collection[str] = ()
) -> Any:
    """Run a command's flags on `argv`; return what its function returns, or Typer's exit code after `--help`.
    `name` is the command; the help shows `program`, by default `python -m NAME`. If there are `usual` flags, by
    their names in Python, `--help` shows only these and `--help-all` all. Raises UsageError for mistakes
    that Typer reports, StoreError if the help cannot be written (full disk), and Interrupted for Ctrl-C."""
    import typer  # only rank 0 needs it

    read, asking = _read(app), [*HELP, HELP_ALL] if usual else [*HELP]
    for one in (read, *getattr(read, "commands", {}).values()):
        one.get_help = partial(page, width=terminal_width(), usual=usual, whole=not usual or HELP_ALL in argv)
    try:
        _refuse_twice(read, argv)
        program = program or f"python -m {name}"
        return read.main(args=list(argv), prog_name=program, standalone_mode=False, help_option_names=asking)
    except typer.Abort:
        raise Interrupted(signal.SIGINT) from None
    except _refusals(typer.BadParameter) as error:
        raise UsageError(refusal(error, read, argv)) from None
    except OSError as error:
        if error.filename is not None:
            raise
        _silence(sys.stdout)
        raise StoreError(f"standard output: {error.strerror}") from None
    except SystemExit:  # the reader of a help text has closed the pipe (head, less)
        _silence(sys.stdout)
        return 0


def output_flag(*names: str) -> Any:
    """Return the annotation of a command's --output flag."""
    import typer

    return typer.Option(*names, help="Write to this file.", metavar="FILE", show_default="stdout")


Command = TypeVar("Command", bound=Callable[..., Any])


def with_fields(record: type) -> Callable[[Command], Command]:
    """Decorate a command, which takes them as `**flags`, with the annotated fields of a Struct as its flags."""
    hints = get_type_hints(record, include_extras=True)
    parameters = [
        Parameter(
            one.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if one.required else one.default,
            annotation=hints[one.name],
        )
        for one in msgspec.structs.fields(record)
    ]

    def add(function: Command) -> Command:
        cast(Any, function).__signature__ = Signature(parameters)
        return function

    return add


def _refusals(one: type[Exception]) -> Any:
    """Return the base class of Typer's errors for user mistakes: TyperException since 0.28, click's before."""
    return one.__mro__[one.__mro__.index(Exception) - 1]


def _refuse_twice(read: Any, argv: Sequence[str]) -> None:
    """Raise UsageError if a list flag (metavar `NAME,...`) is given twice; the first would be dropped silently."""
    for flag in (one.opts[0] for one in read.params if str(one.metavar).endswith(",...")):
        ends = [place for place, word in enumerate(argv) if word.partition("=")[0] == flag]
        if len(ends) > 1:
            given = (argv[place].partition("=")[2] or "".join(argv[place + 1 : place + 2]) for place in ends)
            raise UsageError(f"{flag}: given twice; write {flag} {','.join(given)}")


@cache
def _read(app: typer.Typer) -> Any:
    import typer

    return typer.main.get_command(app)


def obey(act: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None, name: str) -> int:
    """Run a command on `argv`, by default sys.argv, and return its exit code.
    User mistakes become one line on stderr, without a traceback. Ctrl-C becomes exit code 130."""
    open_streams()
    try:
        return act(sys.argv[1:] if argv is None else argv) or 0
    except ScalingError as error:
        complain(error, name)
        return error.exit_code
    except Interrupted as stop:
        return stop.exit_code
    except KeyboardInterrupt:
        return Interrupted(signal.SIGINT).exit_code


Asked = TypeVar("Asked")


def asked_or_code(parse: Callable[[Sequence[str]], Asked | None], argv: Sequence[str], name: str) -> Asked | int:
    """Return what the command line asks for, or the exit code after help, a mistake or Ctrl-C."""
    try:
        asked = parse(argv)
        return 0 if asked is None else asked
    except ScalingError as error:
        complain(error, name)
        return error.exit_code
    except Interrupted as stop:
        return stop.exit_code


def complain(error: ScalingError | str, name: str, kind: str = "error") -> None:
    """Write an error or warning to stderr in one line; ignore a closed stderr."""
    line = f"{name}: {kind}: {one_line(readable(str(error)))}"
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)
    if kind != "warning" and (file := os.environ.get(TORCHRUN_SHOWS)):
        about = {"message": {"message": line, "extraInfo": {"timestamp": str(int(time.time()))}}}
        with suppress(OSError):
            Path(file).write_bytes(msgspec.json.encode(about))


def open_streams() -> None:
    """Reopen a closed stdout or stderr on /dev/null, and replace characters that the locale cannot encode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def terminal_width() -> int:
    """Return the columns of the terminal, or of COLUMNS; 80 if there is none."""
    return shutil.get_terminal_size().columns


def has_color(output: Path | None = None) -> bool:
    """Return whether a result has colours: it goes to a terminal, and NO_COLOR is unset or empty."""
    return output is None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def deliver(data: str | bytes, output: Path | None, flag: str = "--output") -> None:
    """Write a command's result to the file of a flag, or print it. Raises UsageError if the file cannot be
    written or is a run's own file, StoreError if stdout cannot be written."""
    if output is None:
        show(data)
        return
    try:
        _replace(_target(output, flag), _encoded(data))
    except OSError as error:
        raise UsageError(f"{flag} {output}: {error.strerror}") from None


def check_output(output: Path, flag: str) -> None:
    """Raise UsageError for a file that `deliver` could not write, before work that takes long."""
    try:
        place = _target(output, flag)
        has_folder = files.is_folder(place.parent)
    except OSError as error:
        raise UsageError(f"{flag} {output}: {error.strerror}") from None
    if not has_folder:
        raise UsageError(f"{flag} {output}: there is no folder {place.parent}; make it first")
    if not os.access(place.parent, os.W_OK) and not os.access(place, os.W_OK):
        raise UsageError(f"{flag} {output}: cannot be written; name a file in a folder where you may write")


def _target(output: Path, flag: str) -> Path:
    """Return the file to write. Raises UsageError for a folder and for a run's own file."""
    if files.is_folder(output):
        raise UsageError(f"{flag} {output}: is a folder; name a file in it")
    place = output if _is_planted(output) else output.resolve()
    if place.name == KEPT:
        raise UsageError(f"{flag} {output}: is what a run is kept in; name another file")
    return place


def _is_planted(path: Path) -> bool:
    """Return whether a path is a link in a run's folder: the folder's author chose its target, not the user."""
    return path.is_symlink() and (path.parent / KEPT).exists()


def _replace(path: Path, data: bytes) -> None:
    """Replace a file atomically; write directly to a device, a pipe, or into a folder without write access."""
    ours = path.is_symlink() or (path.is_file() and os.access(path.parent, os.W_OK))
    if path.exists() and not ours:
        path.write_bytes(data)
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)
        with part.open("xb") as file:  # never follow a link
            file.write(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _encoded(data: str | bytes) -> bytes:
    return data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data


def show(data: str | bytes) -> None:
    """Print to stdout; ignore a closed pipe (head, less). Raises StoreError on a full disk."""
    try:
        sys.stdout.buffer.write(_encoded(data))
        sys.stdout.flush()
    except OSError as error:
        _silence(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise StoreError(f"standard output: {error.strerror}") from None


def _silence(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
