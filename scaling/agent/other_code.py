"""Children that run another revision of this package: how they are started, and whether they can be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from scaling import frameworks
from scaling.agent.environment import outside_of_mpi
from scaling.records.messages import Tried, Try
from scaling.records.point import Record

PACKAGE = Path(__file__).resolve().parents[1]
ANSWER_S = 45.0
# The working directory precedes PYTHONPATH and may hold this revision.
_START = """
import runpy, sys
if sys.path[0] == "":
    sys.path.append(sys.path.pop(0))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


class Protocol(Record, frozen=True, kw_only=True):
    """The output of protocol.py."""

    package: str
    version: str
    protocol: str
    lacking: dict[str, str]
    files: dict[str, str] = {}


def command(python: str, module: str, code: str) -> list[str]:
    """Return the command that starts a module of the revision in `code`, or of this revision if it is ""."""
    return [python, "-c", _START, module] if code else [python, "-m", module]


def tried(order: Try) -> Tried:
    """Check that workers of a revision start on this host and understand this revision's messages."""
    try:
        other = _asked(order.code, order.strategies)
        ours = _asked("", ())
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        why = (str(said).strip().splitlines() or ["no output"])[-1][:200]
        return Tried(error=f"its workers do not start: {why}")
    if why := _misplaced(order, other):
        return Tried(error=why)
    if other.protocol != ours.protocol:
        return Tried(
            error=f"its workers use another protocol (scaling {other.version}, protocol {other.protocol}; "
            f"this is {ours.version}, protocol {ours.protocol}); compare two runs: --against RUN"
        )
    lacking = "; ".join(other.lacking.values())
    return Tried(error=lacking and f"this revision lacks what is measured: {lacking}")


def _misplaced(order: Try, other: Protocol) -> str:
    """Why Python would load other code than that in the folder; "" if it would not."""
    inside = [name for name in order.strategies if not frameworks.is_outside(name)]
    place = Path(order.code, PACKAGE.name)
    if not Path(order.code).is_dir():
        return f"{order.code} is not visible here: give --results on a file system that all hosts share"
    if inside and Path(other.package).resolve() != place.resolve():
        return f"this revision lacks what is measured: {', '.join(inside)}: no folder {PACKAGE.name}"
    strays = [name for name, file in other.files.items() if not _lies_in(file, order.code)]
    found = "; ".join(f"{name}: {other.files[name]} would be taken" for name in strays)
    return found and f"this revision lacks what is measured: {found}"


def _lies_in(file: str, folder: str) -> bool:
    return Path(file).resolve().is_relative_to(Path(folder).resolve())


def _asked(code: str, strategies: tuple[str, ...]) -> Protocol:
    """Raises OSError, subprocess.SubprocessError, or msgspec.DecodeError for any other output."""
    done = subprocess.run(
        [sys.executable, str(PACKAGE / "agent/protocol.py"), *strategies],
        env=outside_of_mpi(os.environ, code), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=ANSWER_S, check=True,
    )  # fmt: skip
    return msgspec.json.decode(done.stdout, type=Protocol)
