"""Energy of processors and memory: power over rate, of all of a row's machines or none, and of nobody else."""

from __future__ import annotations

import csv as csv_module
import io
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from scaling.analysis.measured.device_use import MachineUse
from scaling.analysis.table.analyse import rows
from scaling.records.run import PointRecord
from scaling.records.telemetry import MachineEnergy
from scaling.report import words
from scaling.report.document import document
from scaling.report.formats import csv
from scaling.tools.compare.found import METRICS
from tests.support.scripted_records import close, header, point, record, warning

NODES = ("node1", "node2")
FIRST = "/sys/class/powercap/intel-rapl:0/energy_uj: Permission denied"
BOTH = {"node1": MachineEnergy(joules=100.0, seconds=1.0), "node2": MachineEnergy(joules=400.0, seconds=2.0)}
UNREADABLE = MachineEnergy(unreadable=FIRST)


def counted(made: PointRecord, by_host: Mapping[str, MachineEnergy]) -> PointRecord:
    hosts = [rank.host for rank in made.ranks]
    return replace(
        made,
        ranks=tuple(
            replace(rank, telemetry=replace(rank.telemetry, machine_energy=by_host.get(rank.host)))
            if rank.host not in hosts[: rank.rank]
            else rank
            for rank in made.ranks
        ),
    )


def two_nodes(by_host: Mapping[str, MachineEnergy], number: int = 0) -> PointRecord:
    """Two ranks that do 64 images in 0.1 s."""
    return counted(record(point("exchange", 2, number), 0.1, hosts=NODES), by_host)


def use(*records: PointRecord) -> MachineUse | None:
    (row,) = rows([record(point("solo", 1), 0.1), *records])
    return row.machine_energy


def test_energy_of_a_sample_is_power_over_rate() -> None:
    """100 W and 200 W; 640 images/s."""
    found = use(two_nodes(BOTH))
    assert found is not None
    assert (found.power_w, found.j_per_sample) == (300.0, close(300 / 640))


def test_it_is_the_mean_of_rounds() -> None:
    less = {**BOTH, "node2": MachineEnergy(joules=200.0, seconds=2.0)}
    found = use(two_nodes(BOTH), two_nodes(less, 1))
    assert found is not None and found.power_w == 250.0


def test_a_part_is_not_the_whole() -> None:
    assert use(two_nodes({"node1": BOTH["node1"]})) is None
    assert use(two_nodes({})) is None
    assert use(two_nodes({**BOTH, "node2": MachineEnergy(joules=0.0, seconds=2.0)})) is None
    assert use(two_nodes({**BOTH, "node2": UNREADABLE})) == MachineUse(unreadable=FIRST)


@pytest.mark.parametrize("how", ["oversubscribed", "disturbed", "emulated"])
def test_nothing_is_claimed_where_the_machine_is_not_theirs_alone(how: str) -> None:
    made = two_nodes(BOTH)
    changed = {
        "oversubscribed": replace(made, oversubscribed=True),
        "disturbed": replace(made, warnings=(replace(warning("somebody"), kind="foreign-load"),)),
        "emulated": replace(made, point=point("exchange", 2, device="emulated", profile="p100")),
    }
    assert use(changed[how]) is None


# ---------------------------------------------------------------- in the report


def details(*records: PointRecord) -> dict[str, str]:
    made = document(header(), [record(point("solo", 1), 0.1), *records])
    of_rows = {one.label: words.value(one.values[0]) for section in made.sections for one in section.details}
    return of_rows | {entry.label: words.text(entry.phrase) for entry in made.how_to_read}


def columns(*records: PointRecord) -> dict[str, str]:
    return next(csv_module.DictReader(io.StringIO(csv.render([record(point("solo", 1), 0.1), *records]))))


def test_the_report_says_it() -> None:
    found = details(two_nodes(BOTH))
    assert "RAPL" in found["CPU and DRAM"] and "J, W: -" not in found
    shown = document(header(), [record(point("solo", 1), 0.1), two_nodes(BOTH)])
    (said,) = [one for section in shown.sections for one in section.details if one.label == "CPU and DRAM"]
    assert words.value(said.values[0]) == "N=2 300 W, 0.469 J/image, 2.13 images/s/W"
    told = columns(two_nodes(BOTH))
    assert (told["machine_power_w"], told["machine_j_per_sample"]) == ("300.0", "0.46875")


def test_what_cannot_be_read_is_a_dash_and_its_cure_a_note() -> None:
    made = document(header(), [record(point("solo", 1), 0.1), two_nodes({**BOTH, "node1": UNREADABLE})])
    (said,) = [one for section in made.sections for one in section.details if one.label == "CPU and DRAM"]
    assert words.value(said.values[0]) == "N=2 -"
    (cure,) = [words.text(entry.phrase) for entry in made.how_to_read if entry.label == "J, W: -"]
    assert cure.startswith(f"{FIRST}: cannot be read") and "udev rule" in cure
    told = columns(two_nodes({**BOTH, "node1": UNREADABLE}))
    assert (told["machine_power_w"], told["machine_unreadable"]) == ("", FIRST)


def test_where_nobody_counts_there_is_no_line_and_no_column() -> None:
    assert not {"CPU and DRAM", "J, W: -"} & details(two_nodes({})).keys()
    assert not [
        name for name in columns(two_nodes({})) if name.startswith("machine_") and name != "machine_cpu_percent"
    ]


def test_it_is_what_runs_on_cpus_are_compared_by() -> None:
    (row,) = rows([record(point("solo", 1), 0.1), two_nodes(BOTH)])
    found = METRICS["j_per_sample"].of(row)
    assert found is not None and found.mean == close(300 / 640)
