"""Find the terminal that shows the output of this process.

A rank cannot ask its own stdout: it is a pipe (MPICH, Intel MPI, Slurm) or a pseudo-terminal of mpirun (Open MPI),
even if mpirun writes to a file. mpirun copies the output of rank 0 to its own stdout. If mpirun is an ancestor of
this process, its stdout decides. Otherwise the place of the output is unknown, and the view is plain: rank 0 runs
on another node, under srun, or below a daemon (prte). The view is also plain in the background, and if mpirun
labels the lines of ranks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from scaling.transport.start import launched

ViewKind = Literal["auto", "live", "plain", "none"]

MPIRUNS = frozenset(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"))
# Options of Open MPI, MPICH and Intel MPI that label each line of a rank, or write it to files.
LABELS = frozenset(
    ("tag-output", "timestamp-output", "output", "output-filename", "prepend-rank", "prepend-pattern", "l")
)
DUMB = frozenset(("dumb", "unknown"))
PROC = Path("/proc")


def find(environ: Mapping[str, str] = os.environ, pid: int | None = None, proc: Path = PROC) -> int | None:
    """Open the terminal that shows the stdout of process `pid`, by default this one. Return its file descriptor;
    None if the output goes to a file, a pipe or an unknown place."""
    with suppress(OSError, ValueError):
        shower = pid or os.getpid()
        if launched(environ) or "PMIX_RANK" in environ:
            found = next((one for one in _ancestors(shower, proc) if _names(one, proc) & MPIRUNS), None)
            if found is None or _labels(found, proc):
                return None
            shower = found
        _, _, group, _, _, foreground = _stat(shower, proc)[:6]
        if group == foreground:  # of its controlling terminal
            return _opened(proc / str(shower) / "fd/1")
    return None


def is_dumb() -> bool:
    """Return whether the terminal cannot move its cursor."""
    return os.environ.get("TERM", "").lower() in DUMB


def size(terminal: int | None) -> os.terminal_size:
    """Return COLUMNS and LINES, else the size of this terminal, else that of stdout, else 80 x 24."""
    if terminal is not None and not os.environ.keys() & {"COLUMNS", "LINES"}:
        with suppress(OSError):
            found = os.get_terminal_size(terminal)
            if found.columns and found.lines:
                return found
    return shutil.get_terminal_size()


def _opened(stdout: Path) -> int | None:
    if not stdout.is_char_device():
        return None
    fd = os.open(stdout, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    if os.isatty(fd):
        return fd
    os.close(fd)
    return None


def _ancestors(pid: int, proc: Path) -> Iterator[int]:
    while (pid := int(_stat(pid, proc)[1])) > 1:
        yield pid


def _stat(pid: int, proc: Path) -> list[str]:
    """State, parent, process group, session, terminal, foreground process group and more (man 5 proc)."""
    return (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _names(pid: int, proc: Path) -> set[str]:
    """The names of a program's file and of its call: the file of `mpirun` may be `orterun_wrapper`."""
    return {(proc / str(pid) / "comm").read_text().strip(), Path(_words(pid, proc)[0]).name}


def _labels(pid: int, proc: Path) -> bool:
    options = (word for word in _words(pid, proc) if word.startswith("-"))
    return any(option.lstrip("-").partition("=")[0] in LABELS for option in options)


def _words(pid: int, proc: Path) -> list[str]:
    return (proc / str(pid) / "cmdline").read_text(errors="replace").split("\0")
