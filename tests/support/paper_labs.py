"""Labs on paper: what a lab's state says, without a kernel that made one."""

from __future__ import annotations

from scaling.tools.lab.state import Holder, Lab, Nic, Program

HOLDER = Holder(program=Program(pid=1, start_ticks=0), namespaces={}, inodes={})


def nic(name: str = "ib0", rate: float = 1e9, subnet: str = "10.10.0.0/24", shaped: float | None = None) -> Nic:
    """A card of a node, shaped to its rate unless told otherwise."""
    return Nic(name=name, subnet=subnet, rate_bits_per_s=rate, shaped_bits_per_s=shaped or rate)


def lab(*nics: Nic, links: dict[str, float] | None = None) -> Lab:
    """Two nodes of four slots with these cards."""
    cards = nics or (nic(), nic("eth0", 1e8, "10.20.0.0/24"))
    return Lab(name="lab", nodes=("node1", "node2"), slots=4, nics=cards, holder=HOLDER, links=links or {})
