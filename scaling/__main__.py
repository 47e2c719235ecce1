"""The command `scaling COMMAND ...`, also `python -m scaling COMMAND ...`.

A command's package is imported only when that command runs.
"""

# ruff: noqa: E402

from __future__ import annotations

import signal

RANKS = ("run", "check", "certify", "bisect")
if __name__ == "__main__":  # no signal ends a rank before `Signals`: the others may wait for it
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP))

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from scaling.command import complain, obey
from scaling.errors import near
from scaling.run import NAME
from scaling.transport.start import launched

COMPLETING = "_SCALING_COMPLETE"  # set by Typer's completion scripts
OWN = ("--help", "-h", "--version", "--install-completion", "--show-completion")


class Command(NamedTuple):
    """The package of a command and its one-line summary."""

    package: str
    summary: str


COMMANDS = {
    "run": Command("scaling.run", "Measure how training scales."),
    "check": Command("scaling.tools.check", "Check that a cluster is fit to be measured."),
    "report": Command("scaling.report", "Show the tables, figures or page of runs."),
    "compare": Command("scaling.tools.compare", "Test whether a change made training slower."),
    "history": Command("scaling.tools.history", "List all runs of a folder."),
    "import": Command("scaling.tools.importers", "Read logs of other tools into a run."),
    "predict": Command("scaling.tools.predict", "Predict world sizes that were not measured."),
    "certify": Command("scaling.tools.certify", "Give PASS, FAIL or NO VERDICT on a cluster."),
    "bisect": Command("scaling.tools.bisect", "Find the node that slows the others, under mpirun."),
    "lab": Command("scaling.tools.lab", "Emulate a cluster on this machine."),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] not in [[name] for name in RANKS]:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP))
    if COMPLETING in os.environ or not words or words[0].partition("=")[0] in OWN:
        from scaling.completion import run  # Typer

        return obey(lambda given: run(NAME, given, COMMANDS), words or ["--help"], NAME)
    for count in (2, 1):
        if command := COMMANDS.get(" ".join(words[:count])):
            code: int = import_module(f"{command.package}.__main__").main(words[count:])
            return code
    launch = launched(os.environ)
    if launch is None or not launch.rank:
        kind, known = ("flag", OWN) if words[0].startswith("-") else ("command", COMMANDS)
        complain(f"{words[0]}: no such {kind}; {near(words[0], known)}", NAME)
    return 2


def script() -> int:
    """Run the console script. Strategies from outside are found in the working directory, as under `python -m`."""
    sys.path.append("")
    return main()


if __name__ == "__main__":
    sys.exit(main())
