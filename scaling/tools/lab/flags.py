"""The subcommands of `lab` and their flags: up, down, status, rate, run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from scaling.command import command
from scaling.errors import UsageError
from scaling.tools.lab import lifecycle, shapes, state
from scaling.tools.lab.state import Lab

NAME = "scaling lab"
EPILOG = "Exit codes: 0 done, 2 a mistake in the call or no root; of `run`, those of mpirun."
AFTER_RUN = {"ignore_unknown_options": True, "allow_interspersed_args": False}

app = typer.Typer(add_completion=False)
_NAME = typer.Option("--name", help="The lab's name; several labs can be up at the same time.", metavar="NAME")
_NODES = typer.Option("--nodes", help="How many nodes.", metavar="N")
_SLOTS = typer.Option("--slots", help="Ranks that mpirun puts on each node.", metavar="N")
_NIC = typer.Option(
    "--nic",
    help="A network card of every node; repeat it for more: ib0=10gbit or ib0=10gbit,10.10.0.0/24. "
    f"MPI's own traffic uses the last. Default: {' and '.join(shapes.DEFAULT_NICS)}.",
    metavar="NAME=RATE[,SUBNET]",
    show_default=False,
)
_FORCE = typer.Option("--force", help="End an active run too.")
_WHICH = typer.Option("--name", help="Only this lab.", metavar="NAME", show_default="all")
_CHANGES = typer.Argument(
    help="ib0=1gbit (all nodes), node2.ib0=10% (one node's link), node2.ib0=down, node2.ib0=up.",
    metavar="[NODE.]CARD=RATE...",
    show_default=False,
)
_WORDS = typer.Argument(
    help="Arguments of mpirun: -np 16 python -m scaling.run", metavar="-- ARGUMENT...", show_default=False
)


@app.callback(epilog=EPILOG)
def lab() -> None:
    """Emulate a cluster on this machine, of namespaces and shaped links. The lab needs root.

    Four nodes of four slots, each with ib0 and eth0, and a run on them:
        python -m scaling lab up
        python -m scaling lab run -- -np 16 python -m scaling.run
    One node's link at a tenth of its rate:
        python -m scaling lab rate node2.ib0=10%
    """


@app.command()
def up(
    name: Annotated[str, _NAME] = "lab",
    nodes: Annotated[int, _NODES] = 4,
    slots: Annotated[int, _SLOTS] = 4,
    nic: Annotated[list[str] | None, _NIC] = None,
) -> None:
    """Create a lab; one that is already up stays unchanged."""
    lab = lifecycle.up(shapes.shape(name, nodes, slots, nic or ()), say)
    _show(lab, *lifecycle.how_to_use(lab))


@app.command()
def down(name: Annotated[str, _NAME] = "lab", force: Annotated[bool, _FORCE] = False) -> None:
    """End a lab and all its processes, and remove every trace of it."""
    shapes.check_name(name)
    existed = lifecycle.down(name, force=force, say=say)
    _print(f"lab {name} is down" if existed else f"there is no lab {name}")


@app.command()
def status(name: Annotated[str, _WHICH] = "") -> None:
    """Show nodes, cards, rates, and the active run."""
    if name:
        shapes.check_name(name)
        state.load(name)
    shown = [line for each in ([name] if name else state.names()) for line in lifecycle.status(each)]
    _print(*(shown or ["no lab is up"]))


@app.command()
def rate(changed: Annotated[list[str] | None, _CHANGES] = None, name: Annotated[str, _NAME] = "lab") -> None:
    """Reshape a running lab: a network, one node's link, or a card down and up."""
    if not changed:
        raise UsageError("rate: nothing to change; write for example: python -m scaling lab rate ib0=1gbit")
    shapes.check_name(name)
    lifecycle.need_root("rate")
    _show(lifecycle.change(name, changed))


@app.command(context_settings=AFTER_RUN)
def run(words: Annotated[list[str] | None, _WORDS] = None, name: Annotated[str, _NAME] = "lab") -> int:
    """Run mpirun on the nodes, and return its exit code."""
    if not words:
        raise UsageError(
            "run: nothing to run; write for example: python -m scaling lab run -- -np 16 python -m scaling.run"
        )
    shapes.check_name(name)
    return lifecycle.run(name, words, say)


def run_command(argv: Sequence[str]) -> int:
    """Run the subcommand and return the exit code. Raises ScalingError, Interrupted."""
    status = command(app, argv or ["--help"], NAME)
    return status if isinstance(status, int) else 0


def say(text: str) -> None:
    sys.stderr.write(f"{NAME}: {text}\n")
    sys.stderr.flush()


def _show(lab: Lab, *more: str) -> None:
    for nic in lab.nics:
        if warning := shapes.too_fast(nic.name, nic.shaped_bits_per_s, len(lab.nodes)):
            say(f"warning: {warning}")
    _print(*lifecycle.described(lab), *more)


def _print(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
