"""What every command does alike with its command line: read it, and refuse it in one line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from scaling.errors import Interrupted, ScalingError, StoreError, UsageError
from scaling.text import one_line, readable

if TYPE_CHECKING:
    import typer

# What runs are kept in (records/store.py, which stands beside this file and is not imported): never written over.
KEPT = "run.jsonl"
# Of every command, also of a command's own.
HELP = ["--help", "-h"]


def command(app: typer.Typer, argv: Sequence[str], name: str, program: str = "") -> Any:
    """Run a command's flags on `argv`: what its function returns, or Typer's exit code after `--help`.

    Raises UsageError for what Typer refuses, StoreError where no help can be written (a full disk), and
    Interrupted for a Ctrl-C. `name` is the command; the help shows `program`, by default `python -m NAME`.
    """
    import typer  # by rank 0 alone: the other ranks only need what stands below

    try:
        _refuse_twice(_read(app), argv)
        program = program or f"python -m {name}"
        return _read(app).main(args=list(argv), prog_name=program, standalone_mode=False, help_option_names=HELP)
    except typer.Abort:
        raise Interrupted(signal.SIGINT) from None
    except _refusals(typer.BadParameter) as error:
        raise UsageError(error.format_message()) from None
    except OSError as error:
        if error.filename is not None:
            raise
        _silence(sys.stdout)
        raise StoreError(f"standard output: {error.strerror}") from None
    except SystemExit:  # rich's, where the reader of a help text has left (head, less)
        _silence(sys.stdout)
        return 0


def _refusals(one: type[Exception]) -> Any:
    """The class of all errors that Typer raises for a user's mistake, of which `one` is a kind.

    It is TyperException since Typer 0.28, and click's ClickException before.
    """
    return one.__mro__[one.__mro__.index(Exception) - 1]


def _refuse_twice(read: Any, argv: Sequence[str]) -> None:
    """Raises UsageError where a flag that takes a list (metavar `NAME,...`) is given twice: the first would be
    dropped in silence. Of a single value the last one holds, as in other programs."""
    for flag in (one.opts[0] for one in read.params if str(one.metavar).endswith(",...")):
        ends = [place for place, word in enumerate(argv) if word.partition("=")[0] == flag]
        if len(ends) > 1:
            given = (argv[place].partition("=")[2] or "".join(argv[place + 1 : place + 2]) for place in ends)
            raise UsageError(f"{flag}: given twice; write {flag} {','.join(given)}")


@cache
def _read(app: typer.Typer) -> Any:
    """What reads an app's flags, made once a process."""
    import typer

    return typer.main.get_command(app)


def obey(act: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None, name: str) -> int:
    """Run a command on `argv`, by default the process's own arguments: its exit code.

    Users' mistakes are one line on stderr and not a traceback; a Ctrl-C is the code that shells give it.
    """
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


def complain(error: ScalingError | str, name: str, kind: str = "error") -> None:
    """Write an error of the user's or the launch's, or a warning, to stderr in one line; where nobody takes it,
    the exit code still tells."""
    try:
        sys.stderr.write(f"{name}: {kind}: {one_line(readable(str(error)))}\n")
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)


def open_streams() -> None:
    """Open stdout and stderr where the shell closed them: nobody listens, but writing must not fail. Nor must
    signs that the locale lacks: rich writes … into help texts, whatever the encoding."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def deliver(data: str | bytes, output: Path | None) -> None:
    """Write what a command found to its `--output`, or print it. Raises UsageError when the file cannot be
    written or is a run's own, whose measurements nothing brings back, StoreError when stdout cannot."""
    if output is None:
        show(data)
        return
    if output.is_dir():
        raise UsageError(f"--output {output}: is a folder; name a file in it")
    place = output if _is_planted(output) else output.resolve()
    if place.name == KEPT:
        raise UsageError(f"--output {output}: is what a run is kept in; name another file")
    try:
        _replace(place, _encoded(data))
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror}") from None


def _is_planted(path: Path) -> bool:
    """Whether a path is a link in a run's folder: the folder's author chose its target, not the user."""
    return path.is_symlink() and (path.parent / KEPT).exists()


def _replace(path: Path, data: bytes) -> None:
    """A file is there whole or as it was before; a device, a pipe and a file in a folder that is not ours take
    what comes."""
    ours = path.is_symlink() or (path.is_file() and os.access(path.parent, os.W_OK))
    if path.exists() and not ours:
        path.write_bytes(data)
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)
        with part.open("xb") as file:  # never through a link
            file.write(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _encoded(data: str | bytes) -> bytes:
    return data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data


def show(data: str | bytes) -> None:
    """Print to stdout; a reader that has left (head, less) is no error. Raises StoreError on a full disk."""
    try:
        sys.stdout.buffer.write(_encoded(data))
        sys.stdout.flush()
    except OSError as error:
        _silence(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise StoreError(f"standard output: {error.strerror}") from None


def _silence(stream: TextIO) -> None:
    """Nobody takes what is written any more; what Python flushes at exit must not complain either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
