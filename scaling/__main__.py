"""The command `scaling COMMAND ...`, also `python -m scaling COMMAND ...`, its help, version and shell completion.

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
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

from scaling import __version__
from scaling.command import command, complain, obey
from scaling.errors import near
from scaling.run import NAME
from scaling.transport.start import launched

EPILOG = "Scripts that install frameworks and start these commands on a cluster are in launch/ of the source."
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
        return obey(_own, words or ["--help"], NAME)
    if found := COMMANDS.get(words[0]):
        code: int = import_module(f"{found.package}.__main__").main(words[1:])
        return code
    launch = launched(os.environ)
    if launch is None or not launch.rank:
        kind, known = ("flag", OWN) if words[0].startswith("-") else ("command", COMMANDS)
        complain(f"{words[0]}: no such {kind}; {near(words[0], known)}", NAME)
    return 2


def _own(argv: Sequence[str]) -> int:
    """Answer `--help`, `--version`, `--install-completion`, `--show-completion` or a completing shell."""
    import typer  # slow to import

    app = typer.Typer(epilog=EPILOG)
    app.callback()(_callback())
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    typed = line.split()[1:2]
    for name, (package, summary) in COMMANDS.items():
        flags = import_module(f"{package}.flags").app if [name] == typed else None
        if flags is None:
            app.command(name, help=summary)(lambda: None)
        elif len(flags.registered_commands) == 1:
            app.command(name)(flags.registered_commands[0].callback)
        else:
            app.add_typer(flags, name=name)
    code = command(app, argv, NAME, program=NAME)
    return code if isinstance(code, int) else 0


def _callback() -> Callable[..., None]:
    """Return the function of `scaling` without a command; its docstring is the help."""
    import typer

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(__version__)
            raise typer.Exit

    flag = typer.Option(False, "--version", help="Print the version.", callback=show_version, is_eager=True)

    def scaling(version: bool = flag) -> None:
        """Measure how well data-parallel training scales, what limits it, and what would help.

        One machine, one rank per device:
            python -m scaling.run
        A cluster, its nodes in a hostfile, tested and then measured:
            mpirun -np 16 --hostfile hostfiles/4x4 python -m scaling check
            mpirun -np 16 --hostfile hostfiles/4x4 python -m scaling.run
        The answer again:
            python -m scaling report RUN

        `scaling COMMAND --help` shows examples and flags of a command; `python -m scaling COMMAND` is the same.
        """
        del version

    return scaling


def script() -> int:
    """Run the console script. As under `python -m scaling`, the working directory has strategies from outside."""
    sys.path.append("")
    return main()


if __name__ == "__main__":
    sys.exit(main())
