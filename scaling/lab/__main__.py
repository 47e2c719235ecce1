"""`python -m scaling.lab up|down|status|run|rate`: a cluster on this machine, of namespaces and shaped links."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from scaling.errors import LaunchError, ScalingError, UsageError
from scaling.lab import changes, files, lifecycle, processes, rates, running, shapes, state
from scaling.lab.state import Lab

PROGRAM = "scaling.lab"
# Typer brings its own Click or not, by version: all usage errors are kin of the one that it exports.
_BAD_USAGE: Any = typer.BadParameter.__base__
AFTER_RUN = {"ignore_unknown_options": True, "allow_interspersed_args": False}

app = typer.Typer(add_completion=False, help=__doc__)
_NAME = typer.Option("--name", help="Several labs can be up at a time, by name.", metavar="NAME")
_NODES = typer.Option("--nodes", help="How many nodes.", metavar="N")
_SLOTS = typer.Option("--slots", help="Ranks that mpirun puts on each.", metavar="N")
_NIC = typer.Option(
    "--nic",
    help="A card of every node, repeated for each: ib0=10gbit or ib0=10gbit,10.10.0.0/24. "
    f"MPI's own traffic takes the last. Default: {' and '.join(shapes.DEFAULT_NICS)}.",
    metavar="NAME=RATE[,SUBNET]",
    show_default=False,
)
_RATE = typer.Option("--rate", help="Reshape it once it is up, as the command `rate` does.", metavar="CARD=RATE")
_FORCE = typer.Option("--force", help="Also while a run is on, which is ended.")
_WHICH = typer.Option("--name", help="This lab alone.", metavar="NAME", show_default="all")
_CHANGES = typer.Argument(
    help="ib0=1gbit (all nodes), node2.ib0=10% (one node's link), node2.ib0=down, node2.ib0=up.",
    metavar="[NODE.]CARD=RATE",
    show_default=False,
)
_WORDS = typer.Argument(
    help="What mpirun is given: -np 16 python -m scaling.run", metavar="-- ARGUMENT...", show_default=False
)


@app.command()
def up(
    name: Annotated[str, _NAME] = "lab",
    nodes: Annotated[int, _NODES] = 4,
    slots: Annotated[int, _SLOTS] = 4,
    nic: Annotated[list[str] | None, _NIC] = None,
    rate_: Annotated[list[str] | None, _RATE] = None,
) -> int:
    """Make a lab; one that is up already stays as it is."""
    wanted = shapes.shape(name, nodes, slots, nic or ())
    changing = changes.cards(wanted, rate_ or ())
    lab = lifecycle.up(wanted, say, changing=changing)
    if rate_:
        lab = changes.change(name, rate_)
    _warn_of_rates(lab)
    _print(*described(lab), *_how_to_use(lab))
    return 0


@app.command()
def down(name: Annotated[str, _NAME] = "lab", force: Annotated[bool, _FORCE] = False) -> int:
    """End a lab and all that runs in it; nothing is left of it."""
    shapes.check_name(name)
    existed = lifecycle.down(name, force=force, say=say)
    _print(f"lab {name} is down" if existed else f"there is no lab {name}")
    return 0


@app.command()
def status(name: Annotated[str, _WHICH] = "") -> int:
    """Show nodes, cards, rates, and the run that is on."""
    if name:
        shapes.check_name(name)
        state.load(name)
    shown = [line for each in ([name] if name else state.names()) for line in _status(each)]
    _print(*(shown or ["no lab is up"]))
    return 0


@app.command()
def rate(changed: Annotated[list[str] | None, _CHANGES] = None, name: Annotated[str, _NAME] = "lab") -> int:
    """Reshape a running lab: a network, one node's link, or a card down and up."""
    if not changed:
        raise UsageError("rate: of what? write for example: python -m scaling.lab rate ib0=1gbit")
    shapes.check_name(name)
    lifecycle.need_root("rate")
    lab = changes.change(name, changed)
    _warn_of_rates(lab)
    _print(*described(lab))
    return 0


@app.command(context_settings=AFTER_RUN)
def run(words: Annotated[list[str] | None, _WORDS] = None, name: Annotated[str, _NAME] = "lab") -> int:
    """Run mpirun on the nodes; its exit code is this one's."""
    if not words:
        raise UsageError("run: what? write for example: python -m scaling.lab run -- -np 16 python -m scaling.run")
    shapes.check_name(name)
    return running.run(name, words, say)


# ---------------------------------------------------------------- what is printed


def described(lab: Lab) -> list[str]:
    """The lab's networks, and the links that differ from theirs."""
    nodes = " to ".join(dict.fromkeys((lab.nodes[0], lab.nodes[-1])))
    lines = [f"lab {lab.name}: {nodes}, {lab.slots} slot{'' if lab.slots == 1 else 's'} each"]
    for nic in lab.nics:
        shaped = rates.show(nic.shaped_bits_per_s)
        now = "" if nic.shaped_bits_per_s == nic.rate_bits_per_s else f", shaped to {shaped} now"
        lines.append(f"  {nic.name:<6} {nic.subnet:<18} {rates.show(nic.rate_bits_per_s)}{now}")
        for node in lab.nodes:
            link = f"{node}.{nic.name}"
            if link in lab.links:
                lines.append(f"  {link} {rates.show(lab.link_bits_per_s(node, nic))} ({100 * lab.links[link]:g}%)")
            if link in lab.down:
                lines.append(f"  {link} down")
    return lines


def _how_to_use(lab: Lab) -> list[str]:
    name = f" --name {lab.name}" if lab.name != "lab" else ""
    ranks = len(lab.nodes) * lab.slots
    return [
        f"hostfile {lab.folder / 'hostfile'} (MPICH: hostfile.mpich), networks {lab.folder / 'fabric.toml'}",
        f"inside {lab.nodes[0]}: {' '.join(files.mpirun_command(lab))} -np {ranks} python -m scaling.run",
        f"from here: python -m scaling.lab run{name} -- -np {ranks} python -m scaling.run",
    ]


def _status(name: str) -> list[str]:
    try:
        lab = state.find(name)
    except LaunchError as error:
        return [f"lab {name}: {error}"]
    if lab is None:
        return [f"lab {name}: left half-made; `up` makes it anew, `down --name {name}` clears it away"]
    holder = lab.holder.program
    if not holder.lives:
        return [f"lab {name}: broken, its holder {holder.pid} is gone; `up` makes it anew, `down` clears it away"]
    return [*described(lab), *_addresses(lab), f"  holder {holder.pid} lives; {_run(lab)}"]


def _addresses(lab: Lab) -> list[str]:
    return [
        f"  {node:<7} " + "  ".join(f"{nic.name} {nic.address(number)}" for nic in lab.nics)
        for number, node in enumerate(lab.nodes, 1)
    ]


def _run(lab: Lab) -> str:
    on = processes.run_on(lab)
    if on is None:
        return "no run is on"
    since = time.strftime("%H:%M:%S", time.localtime(on.since_unix_s))
    return f"a run is on since {since}, {on.told}"


def _warn_of_rates(lab: Lab) -> None:
    for nic in lab.nics:
        if warning := rates.too_fast(nic.name, nic.shaped_bits_per_s, len(lab.nodes)):
            say(f"warning: {warning}")


def say(text: str) -> None:
    """A line about what goes on, on stderr."""
    sys.stderr.write(f"{PROGRAM}: {text}\n")
    sys.stderr.flush()


def _print(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. Users' mistakes are one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    command = typer.main.get_command(app)
    try:
        status = command.main(arguments, prog_name=f"python -m {PROGRAM}", standalone_mode=False)
    except _BAD_USAGE as error:
        return _refused(error.format_message(), 2)
    except ScalingError as error:
        return _refused(str(error), error.exit_code)
    except typer.Abort:  # Ctrl-C, outside of a run
        return 130
    return status if isinstance(status, int) else 0


def _refused(message: str, status: int) -> int:
    say(f"error: {' '.join(message.split())}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
