"""A made-up /sys/class/powercap: two packages, DRAM, and what must not be added to them."""

from __future__ import annotations

from pathlib import Path

RANGE_UJ = 1_000_000_000
DOMAINS = {
    "intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram",
    "intel-rapl:1": "package-1", "intel-rapl:2": "psys", "intel-rapl-mmio:0": "package-0",
}  # fmt: skip
COUNTED = ("intel-rapl:0", "intel-rapl:0:1", "intel-rapl:1")


class Powercap:
    """Counters in microjoules below `root`; all begin at `start_uj`."""

    def __init__(self, root: Path, start_uj: int = 5_000_000) -> None:
        self.root = root
        self._uj = dict.fromkeys(DOMAINS, start_uj)
        (root / "intel-rapl").mkdir(parents=True)
        (root / "intel-rapl" / "enabled").write_text("1\n")
        for folder, name in DOMAINS.items():
            (root / folder).mkdir()
            (root / folder / "name").write_text(f"{name}\n")
            (root / folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
            self.use(folder, 0)

    def use(self, folder: str, used_uj: int) -> None:
        """A counter moves on, from its range's end back to zero."""
        self._uj[folder] = (self._uj[folder] + used_uj) % RANGE_UJ
        (self.root / folder / "energy_uj").write_text(f"{self._uj[folder]}\n")

    def forbid(self, folder: str) -> Path:
        """A counter that cannot be read, by root neither; return which."""
        path = self.root / folder / "energy_uj"
        path.unlink()
        path.mkdir()
        return path
