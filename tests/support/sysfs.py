"""A made-up /sys and /proc/net: interfaces, what they stand on, and RDMA cards with their counters."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from scaling.hosts import interfaces

Moved = dict[str, tuple[int, int]]


class Sysfs:
    """The files of one host below `root`. Everything may be written again with other counts."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, content: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")

    def interface(
        self,
        name: str,
        received: int = 0,
        sent: int = 0,
        *,
        on: Iterable[str] = (),
        master: str = "",
        **files: object,
    ) -> None:
        """An interface that stands on others, below a bond or a bridge; `files` are further ones of it."""
        folder = f"sys/class/net/{name}"
        for way, count in (("rx", received), ("tx", sent)):
            self.write(f"{folder}/statistics/{way}_bytes", count)
        for file, content in files.items():
            self.write(f"{folder}/{file}", content)
        for lower in on:
            self._link(f"sys/class/net/{lower}/upper_{name}", name)
        if master:
            self._link(f"{folder}/master", master)
            self._link(f"{folder}/upper_{master}", master)

    def port(
        self,
        card: str = "mlx5_0",
        number: int = 1,
        *,
        words: tuple[int, int] | None = None,
        hw_bytes: tuple[int, int] | None = None,
        link_layer: str = "InfiniBand",
        state: str = "4: ACTIVE",
        rate: str = "100 Gb/sec (4X EDR)",
        nets: Iterable[str] = (),
        uverbs: str = "",
    ) -> None:
        """A port of a card, and the interfaces of the whole card."""
        if uverbs:
            self.write(f"sys/class/infiniband/{card}/device/infiniband_verbs/{uverbs}/ibdev", card)
        folder = f"sys/class/infiniband/{card}/ports/{number}"
        for file, content in (("link_layer", link_layer), ("state", state), ("rate", rate)):
            self.write(f"{folder}/{file}", content)
        for name, count in zip(("port_rcv_data", "port_xmit_data"), words or (), strict=False):
            self.write(f"{folder}/counters/{name}", count)
        for name, count in zip(("rx_bytes", "tx_bytes"), hw_bytes or (), strict=False):
            self.write(f"{folder}/hw_counters/{name}", count)
        self._nets(f"sys/class/infiniband/{card}", nets)

    def slingshot(self, card: str, received: int, sent: int, *, net: str) -> None:
        """A card of Slingshot, whose counters say when they were read."""
        for way, count in (("rx", received), ("tx", sent)):
            self.write(f"sys/class/cxi/{card}/device/telemetry/hni_sts_{way}_ok_octets", f"{count}@1700000000.1")
        self._nets(f"sys/class/cxi/{card}", [net])

    def moved(self, before: interfaces.Reading) -> Moved:
        found = interfaces.since(before, interfaces.read(self.root))
        return {one.name: (one.received_bytes, one.sent_bytes) for one in found}

    def _nets(self, card: str, nets: Iterable[str]) -> None:
        for net in nets:
            (self.root / card / "device/net" / net).mkdir(parents=True, exist_ok=True)

    def _link(self, path: str, name: str) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(f"../{name}")
