"""A lab as text: printed descriptions, and its files (hosts, hostfiles, fabric, the agent for mpirun)."""

from __future__ import annotations

import shlex
import sys
import time

from scaling.errors import LaunchError
from scaling.text import counted
from scaling.tools.lab import state
from scaling.tools.lab.remote import CHECKOUT
from scaling.tools.lab.shapes import show_rate
from scaling.tools.lab.state import Lab, Nic, folder, replace_file

# names for --interconnect, by the card's name
FAMILIES = {"ib": "ib", "eth": "ethernet"}


def described(lab: Lab) -> list[str]:
    nodes = " to ".join(dict.fromkeys((lab.nodes[0], lab.nodes[-1])))
    lines = [f"lab {lab.name}: {nodes}, {counted(lab.slots, 'slot')} each"]
    for nic in lab.nics:
        is_declared = nic.shaped_bits_per_s == nic.rate_bits_per_s
        now = "" if is_declared else f", shaped to {show_rate(nic.shaped_bits_per_s)} now"
        lines.append(f"  {nic.name:<6} {nic.subnet:<18} {show_rate(nic.rate_bits_per_s)}{now}")
        for node in lab.nodes:
            link = f"{node}.{nic.name}"
            if link in lab.links:
                rate = show_rate(lab.link_bits_per_s(node, nic))
                lines.append(f"  {link} {rate} ({100 * lab.links[link]:g}%)")
            if link in lab.down:
                lines.append(f"  {link} down")
    return lines


def how_to_use(lab: Lab) -> list[str]:
    ranks = len(lab.nodes) * lab.slots
    return [
        f"hostfile {lab.folder / 'hostfile'} (MPICH: hostfile.mpich), networks {lab.folder / 'fabric.toml'}",
        f"inside {lab.nodes[0]}: {' '.join(mpirun_command(lab))} --hostfile {lab.folder / 'hostfile'} -np {ranks} "
        "python -m scaling.run",
        f"from here: python -m scaling lab run{lab.flag} -- -np {ranks} python -m scaling.run",
    ]


def status(name: str) -> list[str]:
    """Describe the lab, or what is left of a broken one."""
    try:
        lab = state.find(name)
    except LaunchError as error:
        return [f"lab {name}: {error}"]
    if lab is None:
        return [f"lab {name}: incomplete; `up` creates it again, `down --name {name}` removes it"]
    holder = lab.holder.program
    if not holder.lives:
        return [f"lab {name}: broken, its holder {holder.pid} is gone; `up` creates it again, `down` removes it"]
    addresses = [
        f"  {node:<7} " + "  ".join(f"{nic.name} {nic.address(number)}" for nic in lab.nics)
        for number, node in enumerate(lab.nodes, 1)
    ]
    runs = "no run is active"
    if on := state.run_on(lab):
        runs = f"a run is active since {time.strftime('%H:%M:%S', time.localtime(on.since_unix_s))}, {on.told}"
    return [*described(lab), *addresses, f"  holder {holder.pid} is alive; {runs}"]


def write(lab: Lab) -> None:
    agent = lab.folder / "agent"
    for name, slots in (("hostfile", " slots="), ("hostfile.mpich", ":")):
        replace_file(lab.folder / name, "".join(f"{node}{slots}{lab.slots}\n" for node in lab.nodes).encode())
    replace_file(lab.folder / "fabric.toml", fabric(lab).encode())
    replace_file(agent, agent_script(lab.name, sys.executable).encode())
    agent.chmod(0o755)


def hosts(nodes: tuple[str, ...], nics: tuple[Nic, ...]) -> str:
    """Write /etc/hosts: a node's name is its address on the last network, `node1-ib0` another address."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for number, node in enumerate(nodes, 1):
        for nic in reversed(nics):
            plain = f"{node} " if nic is nics[-1] else ""
            lines.append(f"{nic.address(number)} {plain}{node}-{nic.name}")
    return "\n".join(lines) + "\n"


def fabric(lab: Lab) -> str:
    """Declare the networks: `ib` is the first ibN, `ethernet` the first ethN, others have their card's name."""
    named: dict[str, Nic] = {}
    for nic in lab.nics:
        family = FAMILIES.get(nic.name.rstrip("0123456789"), nic.name)
        named[nic.name if family in named else family] = nic
    lines = [f"# The networks of lab {lab.name}."]
    for name, nic in named.items():
        rate_gbit = f"{nic.rate_bits_per_s / 1e9:.10f}".rstrip("0").rstrip(".")
        lines += ["", f"[{name}]", f'interface = "{nic.name}"', f'subnet = "{nic.subnet}"']
        lines += [f"rate_gbit = {rate_gbit}"]
    return "\n".join(lines) + "\n"


def agent_script(name: str, python: str) -> str:
    """Write the executable that mpirun calls as `agent HOST WORDS...` (remote.py)."""
    code = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from scaling.tools.lab import remote; "
    code += "remote.main(sys.argv[1:])"
    return (
        "#!/bin/sh\n"
        f"# HOST WORDS...: run a command on a node of lab {name}, as ssh would.\n"
        f"SCALING_LAB={name} SCALING_FABRIC={folder(name)}/fabric.toml\n"
        "export SCALING_LAB SCALING_FABRIC\n"
        f'exec {shlex.quote(python)} -I -c {shlex.quote(code)} "$@"\n'
    )


def mpirun_command(lab: Lab) -> list[str]:
    agent = str(lab.folder / "agent")
    return [str(CHECKOUT / "launch" / "mpirun"), "--agent", agent, "--interface", lab.nics[-1].name]
