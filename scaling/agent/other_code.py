"""Children that run another revision of this package: how they are started, and whether they can be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from scaling.agent.environment import outside_of_mpi
from scaling.records.messages import Tried, Try
from scaling.records.point import Record

PACKAGE = Path(__file__).resolve().parents[1]
# A cluster's file system may be cold.
ANSWER_S = 45.0
# The folder that a process is started in goes before PYTHONPATH, and may hold this revision.
_START = """
import runpy, sys
if sys.path[0] == "":
    sys.path.append(sys.path.pop(0))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


class Protocol(Record, frozen=True, kw_only=True):
    """What protocol.py prints of a package."""

    package: str
    version: str
    protocol: str
    lacking: dict[str, str]


def command(python: str, module: str, code: str) -> list[str]:
    """What starts a module of the package, of the revision that lies in `code`, of this one where that is ""."""
    return [python, "-c", _START, module] if code else [python, "-m", module]


def tried(order: Try) -> Tried:
    """Whether workers of a revision can be started on this host and understand what they will be told."""
    try:
        other = _asked(order.code, order.strategies)
        ours = _asked("", ())
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        why = (str(said).strip().splitlines() or ["it says nothing"])[-1][:200]
        return Tried(error=f"its workers do not start: {why}")
    if Path(other.package).resolve() != Path(order.code, PACKAGE.name).resolve():
        return Tried(error=f"{order.code} is not seen here: give --results on a file system that all hosts share")
    if other.protocol != ours.protocol:
        return Tried(
            error=f"its workers understand other tasks (scaling {other.version}, protocol {other.protocol}; "
            f"this is {ours.version}, protocol {ours.protocol}); compare two runs: --against RUN"
        )
    lacking = "; ".join(other.lacking.values())
    return Tried(error=lacking and f"it lacks what is measured: {lacking}")


def _asked(code: str, strategies: tuple[str, ...]) -> Protocol:
    """Raises OSError, subprocess.SubprocessError, or msgspec.DecodeError where it says something else."""
    done = subprocess.run(
        [sys.executable, str(PACKAGE / "agent/protocol.py"), *strategies],
        env=outside_of_mpi(os.environ, code), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=ANSWER_S, check=True,
    )  # fmt: skip
    return msgspec.json.decode(done.stdout, type=Protocol)
