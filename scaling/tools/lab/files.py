"""The files of a lab as text: hosts, hostfiles, fabric, and the remote agent that mpirun calls."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from scaling.tools.lab.state import Lab, Nic, folder, replace_file

CHECKOUT = Path(__file__).resolve().parents[2]
# What people call the networks of such cards, and `--interconnect` with them.
FAMILIES = {"ib": "ib", "eth": "ethernet"}


def write(lab: Lab) -> None:
    """Write all of them, also over older ones."""
    agent = lab.folder / "agent"
    replace_file(lab.folder / "hostfile", hostfile(lab).encode())
    replace_file(lab.folder / "hostfile.mpich", hostfile_mpich(lab).encode())
    replace_file(lab.folder / "fabric.toml", fabric(lab).encode())
    replace_file(agent, agent_script(lab.name, sys.executable).encode())
    agent.chmod(0o755)


def hosts(nodes: tuple[str, ...], nics: tuple[Nic, ...]) -> str:
    """/etc/hosts: a node's name means its address on the last network, where MPI's own traffic goes;
    `node1-ib0` is its address on another."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for number, node in enumerate(nodes, 1):
        for nic in reversed(nics):
            plain = f"{node} " if nic is nics[-1] else ""
            lines.append(f"{nic.address(number)} {plain}{node}-{nic.name}")
    return "\n".join(lines) + "\n"


def hostfile(lab: Lab) -> str:
    """For Open MPI."""
    return "".join(f"{node} slots={lab.slots}\n" for node in lab.nodes)


def hostfile_mpich(lab: Lab) -> str:
    """For MPICH and Intel MPI."""
    return "".join(f"{node}:{lab.slots}\n" for node in lab.nodes)


def fabric(lab: Lab) -> str:
    """The networks by name, at the rates declared for them: scaling.run reads it."""
    lines = [f"# The networks of lab {lab.name}."]
    for name, nic in network_names(lab.nics).items():
        rate_gbit = nic.rate_bits_per_s / 1e9
        lines += ["", f"[{name}]", f'interface = "{nic.name}"', f'subnet = "{nic.subnet}"']
        lines += [f"rate_gbit = {rate_gbit:.10f}".rstrip("0").rstrip(".")]
    return "\n".join(lines) + "\n"


def network_names(nics: tuple[Nic, ...]) -> dict[str, Nic]:
    """`ib` for the first ibN, `ethernet` for the first ethN, for others the card's own name."""
    named: dict[str, Nic] = {}
    for nic in nics:
        family = FAMILIES.get(nic.name.rstrip("0123456789"), nic.name)
        named[nic.name if family in named else family] = nic
    return named


def agent_script(name: str, python: str) -> str:
    """The executable that mpirun calls as `agent HOST WORDS...`; see remote.py."""
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
    """launch/mpirun with all that it must know of the lab; it is to be run inside the first node."""
    mpirun = str(CHECKOUT / "launch" / "mpirun")
    options = {
        "--agent": lab.folder / "agent",
        "--interface": lab.nics[-1].name,
        "--hostfile": lab.folder / "hostfile",
    }
    return [mpirun, *(str(word) for pair in options.items() for word in pair)]
