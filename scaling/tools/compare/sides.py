"""The runs of a comparison: read, checked, and made one side each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from scaling.analysis.analyse import rows
from scaling.analysis.joining import EXPECTED, HOSTS, differing, join
from scaling.analysis.rows import Row
from scaling.errors import UsageError
from scaling.records.run import Header, PointRecord
from scaling.records.store import folder_of, is_being_written, load
from scaling.text import readable

# What is repeated: rounds of one launch, or whole launches.
Unit = Literal["rounds", "runs"]
# Launches of a side that tell by themselves how launches differ.
ENOUGH_RUNS = 3


class Side(NamedTuple):
    """The runs of one side, in the order given."""

    name: str
    folders: tuple[Path, ...]
    headers: tuple[Header, ...]
    records: tuple[tuple[PointRecord, ...], ...]

    def rows(self, unit: Unit) -> tuple[tuple[Row, ...], ...]:
        """The rows of each run; where rounds are the unit, of all runs as one."""
        if unit == "runs":
            return tuple(rows(records) for records in self.records)
        return (rows(join(self.records)),)

    @property
    def names(self) -> tuple[str, ...]:
        """The runs' folders, without where they stand."""
        return tuple(readable(folder.resolve().name) for folder in self.folders)


def read(name: str, runs: Sequence[Path], *, although_different: bool) -> Side:
    """Read one side. Raises UsageError when a run cannot be read, is still being written or stands there twice,
    and when runs of one side are not alike and need not."""
    folders = tuple(folder_of(run) for run in runs)
    twice = [folder for folder, count in Counter(folder.resolve() for folder in folders).items() if count > 1]
    if twice:
        raise UsageError(
            f"RUN {twice[0]}: given twice on one side; launches of their own tell how launches differ"
        )
    found = [load(run) for run in runs]
    for run, (header, _) in zip(runs, found, strict=True):
        if header.is_import:
            raise UsageError(f"RUN {run}: is IMPORTED from logs of other tools: not comparable")
        if is_being_written(run):
            raise UsageError(f"RUN {run}: is still being written; compare it when its sweep has ended")
    side = Side(name, folders, tuple(header for header, _ in found), tuple(records for _, records in found))
    apart = {what: values for what, values in differing(side.headers).items() if what != HOSTS}
    if apart and not although_different:
        said = "; ".join(f"{what} differ: {values}" for what, values in apart.items())
        raise UsageError(f"{name}: these runs are not alike: {said}; --although-different compares all the same")
    return side


def unit_of(base: Side, new: Side) -> Unit:
    """Runs where each side has enough of them to tell how launches differ, else rounds."""
    return "runs" if min(len(base.folders), len(new.folders)) >= ENOUGH_RUNS else "rounds"


def apart(base: Side, new: Side) -> tuple[dict[str, str], dict[str, str]]:
    """What is not the same for both sides: what makes them incomparable, and what is only worth a notice."""
    found = differing((*base.headers, *new.headers))
    serious = {what: values for what, values in found.items() if what not in EXPECTED}
    return serious, {what: values for what, values in found.items() if what in EXPECTED}
