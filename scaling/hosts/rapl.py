"""Energy that processors and their memory use, by the kernel's RAPL counters (Documentation/power/powercap).

Those of packages and of DRAM are added. Cores and uncore are inside of a package, `psys` is around all, and what
`intel-rapl-mmio` tells is a package once more. AMD's packages have the same names. Since Linux 5.10 only root may
read them (CVE-2020-8694).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/class/powercap")
UJ_PER_J = 1e6


class Counter(NamedTuple):
    """A domain's file of microjoules, which begins anew after `range_uj`."""

    path: Path
    range_uj: int


def counters(root: Path | None = None) -> list[Counter]:
    """Return those of packages and DRAM; none where the machine has no such, as most virtual ones."""
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
    """Return the microjoules of each. Raises OSError for one that cannot be read."""
    return [_read(counter.path) for counter in found]


def _read(path: Path) -> int:
    # Not Path.read_text: its error would have no path where the content is what is wrong.
    text = path.read_text().strip()
    if not text.isdecimal():
        raise OSError(os.EX_DATAERR, f"no number: {text[:20]!r}", str(path))
    return int(text)


def joules(found: list[Counter], before: list[int], after: list[int]) -> float:
    """Return what was used between two readings, in which no counter began anew more than once."""
    used = (
        end - start + (counter.range_uj if end < start else 0)
        for counter, start, end in zip(found, before, after, strict=True)
    )
    return sum(used) / UJ_PER_J
