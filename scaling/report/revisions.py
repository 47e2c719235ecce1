"""What a launch with two revisions of this package, or of a strategy's file, says of both: the parts of a report.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis.revisions import Change, changes
from scaling.records.run import PointRecord
from scaling.report import quantities
from scaling.report.parts import Entry, Phrase


def facts(records: Sequence[PointRecord]) -> Iterator[Entry]:
    """Which revision `@` means, and what the launch's own one changed, cell by cell; nothing of one revision."""
    found = changes(records)
    for revision in dict.fromkeys(change.revision for change in found):
        of = [change for change in found if change.revision == revision]
        yield Entry(label="against", phrase=(_said(revision, of),))
        yield Entry(label="change", phrase=quantities.distinct([_change(change) for change in of]))


def _said(revision: str, of: Sequence[Change]) -> str:
    """Whose revision it is: this package's, or that of strategies from outside."""
    is_outside = any("." in change.point.strategy.partition(":")[0] for change in of)
    workers = "with that revision of the strategy's own code" if is_outside else "of that revision of scaling"
    rest = "all else, and the plain loops behind every efficiency, is the launch's own"
    return f"@{revision}: workers {workers}; {rest}"


def _change(change: Change) -> Phrase:
    """`torch:gloo N=2 -5.1 % ± 0.4: slower`."""
    point = change.point
    options = ",".join(f"{key}={value}" for key, value in point.sorted_options)
    where = "" if point.interconnect == "auto" else f" over {point.interconnect}"
    name = " ".join(filter(None, (point.strategy + where, options, f"batch {point.workload.batch_size}")))
    if change.gain is None:
        return (f"{name} N={point.world_size} {change.verdict}",)
    by = quantities.fraction(change.gain.mean, change.gain)
    return f"{name} N={point.world_size} ", by, f" {change.verdict}"
