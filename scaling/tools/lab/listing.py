"""What the commands of a lab print: its networks and links, its run, how to use it."""

from __future__ import annotations

import time

from scaling.errors import LaunchError
from scaling.tools.lab import files, processes, rates, state
from scaling.tools.lab.state import Lab


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


def how_to_use(lab: Lab) -> list[str]:
    """The files and commands with which it is used, from inside and from here."""
    name = f" --name {lab.name}" if lab.name != "lab" else ""
    ranks = len(lab.nodes) * lab.slots
    return [
        f"hostfile {lab.folder / 'hostfile'} (MPICH: hostfile.mpich), networks {lab.folder / 'fabric.toml'}",
        f"inside {lab.nodes[0]}: {' '.join(files.mpirun_command(lab))} -np {ranks} python -m scaling.run",
        f"from here: python -m scaling lab run{name} -- -np {ranks} python -m scaling.run",
    ]


def status(name: str) -> list[str]:
    """The lab, its addresses, its holder and the run that is on; or what is left of it."""
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


def warnings_of(lab: Lab) -> list[str]:
    """Rates that this machine may not reach."""
    found = (rates.too_fast(nic.name, nic.shaped_bits_per_s, len(lab.nodes)) for nic in lab.nics)
    return [f"warning: {warning}" for warning in found if warning]
