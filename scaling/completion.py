"""The help of `scaling`, its version, and shell completion."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated

import typer

from scaling import __version__
from scaling.command import command

EPILOG = "Scripts that install frameworks and start these commands on a cluster are in launch/ of the source."


def run(name: str, argv: Sequence[str], commands: Mapping[str, tuple[str, str]]) -> int:
    """Answer `--help`, `--version`, `--install-completion`, `--show-completion` or a completing shell.
    `commands` maps each command's name to its package and summary."""
    code = command(_app(commands, _typed()), argv, name, program=name)
    return code if isinstance(code, int) else 0


def _typed() -> str:
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return "".join(line.split()[1:2])


def _app(commands: Mapping[str, tuple[str, str]], typed: str) -> typer.Typer:
    app = typer.Typer(epilog=EPILOG)
    app.callback()(_own)
    for name, (package, summary) in commands.items():
        if name == typed:
            _complete(app, name, package)
        elif " " not in name:  # subcommands are completed as arguments of their command
            app.command(name, help=summary)(_nothing)
    return app


def _complete(app: typer.Typer, name: str, package: str) -> None:
    flags = import_module(f"{package}.flags").app
    if len(flags.registered_commands) == 1:
        app.command(name)(flags.registered_commands[0].callback)
    else:
        app.add_typer(flags, name=name)


def _nothing() -> None:
    pass


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _own(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
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
