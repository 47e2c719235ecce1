"""Energy of processors and DRAM, from the kernel's RAPL counters (Documentation/power/powercap).

Packages and DRAM are added. Other domains are left out: cores and uncore are parts of a package, `psys` contains
all, `intel-rapl-mmio` repeats a package. AMD uses the same names. Since Linux 5.10 only root may read
(CVE-2020-8694).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/class/powercap")
UJ_PER_J = 1e6


class Counter(NamedTuple):
    """A domain's file of microjoules, which wraps at `range_uj`."""

    path: Path
    range_uj: int


def counters(root: Path | None = None) -> list[Counter]:
    """Return the counters of packages and DRAM; none on most virtual machines."""
    return list(_counters(root or ROOT))


def _counters(root: Path) -> Iterator[Counter]:
    for folder in sorted(root.glob("intel-rapl:*")):
        try:
            name = (folder / "name").read_text().strip()
            range_uj = int((folder / "max_energy_range_uj").read_text())
        except (OSError, ValueError):
            continue
        if name == "dram" or name.startswith("package-"):
            yield Counter(folder / "energy_uj", range_uj)


def read(found: list[Counter]) -> list[int]:
    """Return the microjoules of each counter. Raises OSError."""
    return [_read(counter.path) for counter in found]


def _read(path: Path) -> int:
    # The error needs the path, also for wrong content.
    text = path.read_text().strip()
    if not text.isdecimal():
        raise OSError(os.EX_DATAERR, f"no number: {text[:20]!r}", str(path))
    return int(text)


def joules(found: list[Counter], before: list[int], after: list[int]) -> float:
    """Return the joules between two readings; each counter may have wrapped once."""
    used = (
        end - start + (counter.range_uj if end < start else 0)
        for counter, start, end in zip(found, before, after, strict=True)
    )
    return sum(used) / UJ_PER_J
