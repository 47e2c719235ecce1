"""What an emulated row says of itself: its error, its fitted rates, what nobody emulates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from scaling.emulated.layers import DEFAULT_BUCKET_MB
from scaling.records.run import Emulation, PointRecord
from scaling.records.telemetry import Telemetry
from scaling.report.material import Material
from tests.support.golden import check_golden
from tests.support.golden_rows import check_rows
from tests.support.scripted_records import header, point, record

STEP_S = 0.2
EMULATED: dict[str, Any] = {
    "device": "emulated", "profile": "p100", "model": "googlenet", "batch_size": 36, "dilate": 20.0,
}  # fmt: skip
ALONE = Emulation(samples_per_s=180.0)
FITTED = Emulation(samples_per_s=182.5, fitted="236.2 b / (b + 10.6), fitted to batch 144, and 36 as one of 4")
GOOD = Emulation(samples_per_s=180.0, tail_s=4.0e-3, wire_s=3.4e-3, error_fraction=0.003)
LATE = replace(GOOD, tail_s=32.4e-3, error_fraction=0.044)
INSIDE = replace(GOOD, inside="PCIe 3.0 x16", inside_s=2.0e-3)
BETWEEN, NODES = ("node1", "node2"), ("node1", "node2", "node3", "node4")
CAP = "bucket_cap_mb"


def measured(
    world_size: int, emulation: Emulation | None, hosts: tuple[str, ...] = ("node1",), **changes: Any
) -> PointRecord:
    fields = {"strategy": "torch:gloo", **EMULATED, **changes}
    made = record(point("exchange", world_size, **fields), 20 * STEP_S, hosts=hosts)
    return replace(made, emulation=emulation)


def busy(one: PointRecord) -> PointRecord:
    first = replace(one.ranks[0], telemetry=Telemetry(machine_cpu_percent=97.0))
    return replace(one, ranks=(first, *one.ranks[1:]))


# The error is bounded for the exchange that the model is of, also of records that have a bound for all.
EXCHANGES: dict[str, dict[str, Any]] = {
    "default buckets": {},
    "default buckets, given": {"options": {CAP: str(DEFAULT_BUCKET_MB)}},
    "default buckets, a whole number": {"options": {CAP: f"{DEFAULT_BUCKET_MB:.0f}"}},
    "other buckets": {"options": {CAP: "5"}},
    **{
        name: {"strategy": name}
        for name in ("torch:horovod", "torch:ps-sync", "mxnet:dist_sync", "tensorflow:ring")
    },
}
CASES: dict[str, Sequence[PointRecord]] = {
    "a fitted rate": [measured(1, FITTED), replace(record(point("solo", **EMULATED), 4.0), emulation=FITTED)],
    "a published rate": [measured(1, ALONE)],
    "links inside a node": [measured(4, replace(INSIDE, wire_s=0.0))],
    "links inside nodes, faster than those between them": [measured(16, INSIDE, NODES)],
    "links inside nodes, slower than those between them": [measured(16, replace(INSIDE, wire_s=1.5e-3), NODES)],
    "unknown links inside a node": [measured(4, GOOD)],
    "links inside a node, of another exchange": [
        measured(4, replace(INSIDE, wire_s=0.0), strategy="mxnet:dist_sync")
    ],
    "an error": [measured(2, LATE, BETWEEN)],
    "a small error": [measured(2, replace(GOOD, error_fraction=0.005), BETWEEN)],
    "one device and two": [measured(1, ALONE), measured(2, GOOD, BETWEEN)],
    "a busy machine": [busy(measured(2, GOOD, BETWEEN))],
    "real devices": [record(point("exchange", 2), 0.1)],
    "an older record": [measured(2, None)],
    **{name: [measured(2, LATE, BETWEEN, **fields)] for name, fields in EXCHANGES.items()},
}


def test_emulated_rows_and_their_notes_are_those_of_the_golden_file() -> None:
    check_rows("emulated", CASES)


def test_the_emulator_s_own_error_is_that_of_the_golden_file() -> None:
    found = []
    for case, records in CASES.items():
        details = [one for section in Material(header(), records).doc.sections for one in section.details]
        own = [value for label, values in details if label == "emulator's own error" for value in values]
        found.append(f"{case}: {'; '.join(own) or 'nothing'}\n")
    check_golden("emulators-error.txt", "".join(found))
