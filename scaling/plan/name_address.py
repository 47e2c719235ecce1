"""Check strategies whose ranks listen at the address of the host's name, whatever network is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scaling import frameworks
from scaling.plan.placement import Slot, slots_of
from scaling.records import other_code
from scaling.records.messages import Enrol
from scaling.records.network import Network
from scaling.records.point import EXCHANGING, Device, Point


def refusal(
    point: Point, slots: Sequence[Slot], enrolled: Sequence[Enrol], networks: Iterable[Network]
) -> tuple[str, str] | None:
    """Return why a point would not be measured on its network, and the fix; None if it would."""
    network = next((one for one in networks if one.word == point.interconnect), None)
    if network is None or point.kind not in EXCHANGING:
        return None
    strategy = other_code.own(point.strategy)
    told = {one.host.hostname: one.name_addresses.get(strategy) for one in enrolled}
    hosts = dict.fromkeys(slot.host for slot in slots_of(point, slots))
    obeying = frameworks.load(strategy).obeying
    return fault({host: told[host] for host in hosts}, network, point.hardware.device, obeying)


def fault(
    addresses: Mapping[str, str | None], network: Network, device: Device, obeying: str
) -> tuple[str, str] | None:
    """Return what is wrong with the addresses of these hosts' names, and the fix (with `obeying`), or None.
    One host reaches itself at any address; NCCL (GPUs) needs any address that others reach."""
    if len(addresses) < 2:
        return None
    for host, address in addresses.items():
        wanted = network.places[host].address
        is_own = (address or "127.").startswith(("127.", "::1"))
        if address not in (None, wanted) and (is_own or device != "cuda"):
            why = f"it listens at the address of the host's name: {host} is {address}, on {network.word} {wanted}"
            ways = ["take the network of that address", f"write `{wanted} {host}` into /etc/hosts there"]
            return why, f"{', '.join(ways)}, or {obeying}" if obeying else " or ".join(ways)
    return None
