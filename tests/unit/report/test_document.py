"""A document holds numbers, so that a format needs nothing else; facts and networks of its header."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.measured.traffic import Receipt
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import catalogue
from scaling.analysis.table.analyse import analyse
from scaling.analysis.table.rows import Column
from scaling.hosts.networks import choose
from scaling.records.host import HostInfo
from scaling.report import curves, labels, quantities, words
from scaling.report.document import document
from scaling.report.facts import facts
from scaling.report.formats import markdown, terminal
from scaling.report.parts import Against, Cell, Document, Line, Quantity, Section
from tests.support import clouds, predicted_runs
from tests.support.documents import of_sections, texts
from tests.support.points import changed
from tests.support.predicted_runs import prediction
from tests.support.report_scenes import SCENES, cluster_run, frameworks_run, networks_run, strong_run
from tests.support.scripted_records import failed, header, host, point, record

# A document: it holds numbers, so that a format needs nothing else to draw a run.

CAUSES = ("contention", "straggling", "exposed", "small_batch", "unexplained")


def interval(cell: Cell) -> tuple[float, float, float]:
    assert isinstance(cell, Quantity) and cell.low is not None and cell.high is not None
    return cell.low, cell.value, cell.high


def lines(doc: Document) -> Iterator[Line]:
    return (line for section in (*doc.comparisons, *doc.sections) for line in section.lines)


# ---------------------------------------------------------------- it holds numbers


@pytest.mark.parametrize("scene", SCENES)
def test_no_text_has_a_number_with_its_interval_written_out(scene: str) -> None:
    doc = document(*SCENES[scene]())
    assert not [text for text in texts((doc.facts, doc.comparisons, doc.sections, doc.baselines)) if "±" in text]


def test_a_plot_of_a_run_needs_nothing_but_its_document() -> None:
    """Speedup and efficiency with their intervals, the node boundary, marks, and what was lost to what."""
    made, records = cluster_run()
    doc, rows = document(made, records), analyse(records).rows
    assert [section.title for section in doc.sections] == [
        "torch:nccl over eth0", "torch:gloo over ib0", "torch:nccl over ib0",
    ]  # fmt: skip
    for line, row in zip((line for section in doc.sections for line in section.lines), rows, strict=True):
        of = line.cells
        assert of["world_size"] == Quantity(value=row.world_size, digits=0)
        assert of["nodes"] == Quantity(value=row.nodes, digits=0)
        assert line.flags == row.flags and len(line.marks) == len(row.footnotes)
        begins = [doc.footnotes[mark - 1].partition(":")[0] for mark in line.marks]
        assert begins == [note.partition(":")[0] for note in row.footnotes]
        if row.speedup is not None:
            assert interval(of["speedup"]) == (row.speedup.low, row.speedup.mean, row.speedup.high)
        if row.efficiency is not None:
            assert interval(of["efficiency"]) == pytest.approx(
                [100 * (value or 0) for value in (row.efficiency.low, row.efficiency.mean, row.efficiency.high)]
            )
        else:
            assert "efficiency" not in of and line.says in ("failed: crash(SIGSEGV)", "OVERSUBSCRIBED")
    assert {section.columns[2].unit for section in doc.sections} == {"images/s"}
    assert {section.group for section in (*doc.sections, *doc.comparisons)} == {0}


def test_predictions_of_an_older_version_are_counted_and_named() -> None:
    """Their exchanges stay measured rows; no table has the predictions."""
    told = [prediction(2, 0.96), prediction(8, 0.75)]
    doc = document(predicted_runs.HEADER, predicted_runs.run(), predictions=told)
    assert "PREDICTED: 2 points of an older version's predictions; they are in the run's file alone" in doc.notices
    assert "PREDICTED" in [entry.label for entry in doc.how_to_read]
    assert not any(
        "PREDICTED" in notice for notice in document(predicted_runs.HEADER, predicted_runs.run()).notices
    )


def test_causes_have_intervals_though_tables_show_their_means() -> None:
    doc = document(*cluster_run())
    line = doc.sections[0].lines[2]
    low, mean, high = interval(line.cells["exposed"])
    assert low < mean < high
    parts = [cell.value for cause in CAUSES if isinstance(cell := line.cells[cause], Quantity)]
    efficiency = interval(line.cells["efficiency"])[1]
    assert sum(parts) + efficiency == pytest.approx(100)
    assert {column.key for column in doc.sections[0].columns if column.group == catalogue.BREAKDOWN} == {
        "contention", "straggling", "exposed", "unexplained",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "is_noise"),
    [(-0.004, 0.002, True), (0.001, 0.003, False), (-1e-9, 1e-9, False), (0.0, 0.0, False)],
)
def test_noise_is_what_may_be_more_than_the_nothing_that_it_shows(low: float, high: float, is_noise: bool) -> None:
    """A cause that cannot be anything else, as contention of one device, stands without parentheses."""
    mean = (low + high) / 2
    found = quantities.fraction(mean, Estimate(mean=mean, low=low, high=high, n=3, df=2))
    assert found.is_noise is is_noise


@pytest.mark.parametrize(("value", "is_noise"), [(0.067, True), (-0.0004, True), (0.0, False), (1e-17, False)])
def test_a_part_without_an_interval_is_noise_unless_it_cannot_be_anything_else(
    value: float, is_noise: bool
) -> None:
    alone = Estimate(mean=value, low=None, high=None, n=1)
    assert [quantities.part(value, one).is_noise for one in (alone, None)] == [is_noise] * 2
    assert not quantities.fraction(value, alone).is_noise, "an efficiency is no part that may be nothing"


def test_causes_of_a_single_round_stand_in_parentheses() -> None:
    (section,) = document(*SCENES["one_round"]()).sections
    for line in section.lines:
        known = [cell for cause in CAUSES if isinstance(cell := line.cells.get(cause), Quantity)]
        assert known and all(cell.is_noise == (abs(cell.value) > 1e-9) for cell in known)
        assert isinstance(efficiency := line.cells["efficiency"], Quantity) and not efficiency.is_noise


def test_the_speedup_stands_with_its_interval_below_a_table_that_has_no_room_for_it() -> None:
    (section,) = document(*SCENES["default"]()).sections
    speedup = next(one for one in section.details if one.label == "speedup")
    for value, line in zip(speedup.values, section.lines, strict=True):
        assert interval(value.phrase[0]) == interval(line.cells["speedup"])


def test_a_cause_that_nobody_measured_is_none_and_not_zero() -> None:
    first = next(line for line in lines(document(*frameworks_run())) if "ASYNC" in line.flags)
    assert first.cells["straggling"] is None


def test_differences_keep_their_sign_and_interval_also_where_a_table_has_words_for_them() -> None:
    exchanges, frameworks = document(*frameworks_run()).comparisons
    found = [line.cells.get("against_best") for line in exchanges.lines]
    found += [line.cells.get("against_fastest_framework") for line in frameworks.lines]
    said = {cell.verdict: cell.difference for cell in found if isinstance(cell, Against)}
    assert set(said) == {"best", "slower", "leading", "not separated"} and said["best"] is None
    assert interval(said["slower"])[2] < 0
    low, _, high = interval(said["not separated"])
    assert low < 0 < high


def test_facts_details_and_remarks_hold_their_numbers() -> None:
    doc = document(*networks_run())
    facts = {fact.label: fact.phrase for fact in doc.facts}
    assert Quantity(value=4, digits=0, unit="hosts") in facts["hosts"]
    assert Quantity(value=3, digits=0, unit="rounds") in facts["measured"]
    assert Quantity(value=32, digits=0) in facts["batch"]
    by_label = {detail.label: detail.values for section in doc.sections for detail in section.details}
    for label in ("against its own N=1", "training loss", "bytes between nodes", "busiest path"):
        for value in by_label.get(label, ()):
            assert any(isinstance(part, Quantity) for part in value.phrase), label
    assert {"training loss", "bytes between nodes", "busiest path"} <= set(by_label)
    (remark,) = {line.remark for line in lines(document(*frameworks_run())) if "3,840" in words.text(line.remark)}
    assert [part.value for part in remark if isinstance(part, Quantity)] == pytest.approx([2.82, 1.2, 3840, 1.0])


def test_single_ranks_have_their_efficiency_as_a_number() -> None:
    (table,) = document(*strong_run()).baselines
    assert [line.batch_size for line in table.lines] == [16, 64, 128, 256, 256]
    assert interval(table.lines[-1].efficiency)[1] == pytest.approx(98.8, abs=0.05)
    assert [line.efficiency for line in table.lines[:-1]] == ["", "", "", "= 100 %"]


# ---------------------------------------------------------------- who is compared with whom


def test_a_baseline_is_the_whole_of_its_own_work_alone() -> None:
    """A rate at the batch of another model's rows is nobody's 100 %."""
    of_a = [record(point("solo", batch_size=size), 0.1) for size in (32, 64)] + [record(point(), 0.1)]
    of_b = [record(changed(point(kind, batch_size=64), model="other"), 0.1) for kind in ("solo", "exchange")]
    (table,) = document(header(), [*of_a, *of_b]).baselines
    plain = {line.name: line.efficiency for line in table.lines if "one device" in line.name and line.efficiency}
    assert len(plain) == 2
    assert [line.efficiency for line in table.lines if line.name.startswith("fake:plain, digits-cnn")] == [
        "= 100 %", "",
    ]  # fmt: skip


# ---------------------------------------------------------------- formats draw it


def hand_made(causes: int = 2) -> Section:
    """A table with columns right of the causes, one of them alone, the others a second group."""
    of: dict[str, Cell] = {
        "world_size": Quantity(value=2, digits=0),
        "efficiency": Quantity(value=93.1, low=92.3, high=93.9, digits=1, unit="%"),
        "contention": Quantity(value=6.9, low=6.0, high=7.8, digits=1, unit="%"),
        "straggling": None,
        "exposed": None,
        "unexplained": None,
        "energy": Quantity(value=1.5, low=1.25, high=1.75, digits=2, unit="J"),
        "on_demand": Quantity(value=3.06, digits=2, unit="USD"),
        "spot": Quantity(value=0.9, digits=2, unit="USD"),
    }
    shown = ("contention", "straggling", "exposed", "unexplained")
    first, *_, last = lost = tuple(one for one in catalogue.CAUSES if one.key in shown)
    if causes == 2:
        lost = (first, last)
    prices = [
        Column(key=key, title=title, unit="USD", group="price")
        for key, title in (("on_demand", "on demand"), ("spot", "spot"))
    ]
    energy = Column(key="energy", title="energy", unit="J")
    columns = (catalogue.WORLD_SIZE, catalogue.EFFICIENCY, *lost, energy, *prices)
    return Section(title="by hand", columns=columns, lines=(Line(cells=of),))


@pytest.mark.parametrize("causes", [2, 4])
def test_the_heading_of_a_group_spans_the_columns_of_the_group_alone(causes: int) -> None:
    text = terminal.draw(of_sections(hand_made(causes)), color=False)
    groups, _, heading, _, row = text.splitlines()[-5:]
    (lost, prices) = (found.span() for found in re.finditer(r"─* [a-z ]+, [A-Z%]+ ─*", groups))
    assert groups[slice(*lost)].strip(" ─") == "loss by cause, %"
    assert groups[slice(*prices)].strip(" ─") == "price, USD"
    for name, (start, end) in {"rest": lost, "spot": prices}.items():
        assert heading.index(name) + len(name) == end, "the last column of a group ends where its heading does"
        assert start < heading.index(name)
    energy = heading.index("energy, J")
    assert lost[1] < energy and energy + len("energy, J") < prices[0] <= heading.index("on demand")
    assert row.split()[-3:] == ["0.25", "3.06", "0.90"]


def test_markdown_says_the_unit_in_the_heading_or_in_the_cells() -> None:
    head, _, row = (line for line in markdown.draw(of_sections(hand_made())).splitlines() if line.startswith("|"))
    assert head == (
        "| N | efficiency | contention, % | rest, % | energy, J | on demand, USD | spot, USD | notes |"
    )
    assert row == "| 2 | 93.1 % ± 0.8 | 6.9 | - | 1.50 ± 0.25 | 3.06 | 0.90 |  |"


def test_markdown_links_the_notes_of_baselines() -> None:
    records = [failed(point("solo")), record(point("exchange", 2), 0.1)]
    text = markdown.render(header(), records)
    (line,) = (line for line in text.splitlines() if line.startswith("| fake:plain"))
    assert line.endswith("| OOM | [^2] |") and "\n[^2]: failed: oom" in text


def test_only_cards_that_were_not_asked_for_are_told_apart() -> None:
    receipt = Receipt(
        verdict="VERIFIED", wanted=("ib0", "ib1"), sent_bytes={"ib0": 5, "ib1": 5}, expected_bytes=10
    )
    assert words.text(curves.carried(receipt)) == "100.0 % on ib0, ib1, 1.00 x expected"


# The block above the tables: whose heap CPU workers have, and which variables.

KEPT = "kept by CPU workers (--malloc keep)"
SYSTEM = "unchanged (--malloc system)"


def heap(*hosts: HostInfo, device: str = "cpu", **config: Any) -> list[str]:
    found = facts(header(hosts, device=device, config=config), (), (), labels.context(()))
    return [words.text(entry.phrase) for entry in found if entry.label == "heap"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"malloc": "keep"}, [KEPT]),
        ({"malloc": "system"}, [SYSTEM]),
        ({"malloc": "keep", "device": "emulated"}, [KEPT]),
        ({"malloc": "keep", "device": "cuda"}, []),
        ({"malloc": "keep", "device": "cuda", "baseline_device": "cpu"}, [KEPT]),
        ({}, []),  # of runs that did not keep it yet
    ],
)
def test_whether_the_heap_is_kept_is_said(config: dict[str, Any], said: list[str]) -> None:
    assert heap(**config) == said


@pytest.mark.parametrize("malloc", ["keep", "system"])
def test_another_allocator_is_told_apart(malloc: str) -> None:
    named = host(allocator="jemalloc", allocator_by="LD_PRELOAD")
    assert heap(named, malloc=malloc) == ["jemalloc, by LD_PRELOAD"]


def test_what_is_not_known_to_come_by_ld_preload_is_not_said_to() -> None:
    """It is linked to Python, or the run is an older one, which believed what LD_PRELOAD named."""
    assert heap(host(allocator="jemalloc"), malloc="keep") == ["jemalloc"]


@pytest.mark.parametrize(("malloc", "own"), [("keep", KEPT), ("system", SYSTEM)])
def test_what_the_user_has_set_of_the_heap_comes_first(malloc: str, own: str) -> None:
    settings = ("MALLOC_TRIM_THRESHOLD_=0", "glibc.malloc.arena_max=1")
    said = f"with the user's MALLOC_TRIM_THRESHOLD_=0, glibc.malloc.arena_max=1, else {own}"
    assert heap(host(heap_settings=settings), malloc=malloc) == [said]


def test_what_the_user_has_set_on_one_host_is_said_of_that() -> None:
    hosts = [host("node1", heap_settings=("MALLOC_TOP_PAD_=1",)), host("node2")]
    said = f"with the user's MALLOC_TOP_PAD_=1, else {KEPT} on node1; {KEPT} on node2"
    assert heap(*hosts, malloc="keep") == [said]


def test_another_allocator_reads_no_settings_of_glibcs() -> None:
    assert heap(host(allocator="jemalloc", heap_settings=("MALLOC_TOP_PAD_=1",)), malloc="keep") == ["jemalloc"]


def test_hosts_whose_allocators_differ_are_named() -> None:
    allocators = {"node1": "jemalloc", "node2": "", "node3": "", "node4": "jemalloc"}
    hosts = [host(name, allocator=allocator) for name, allocator in allocators.items()]
    assert heap(*hosts, malloc="keep") == [f"jemalloc on node1 node4; {KEPT} on node2 node3"]


# ---------------------------------------------------------------- variables


def said(label: str, *hosts: HostInfo) -> list[str]:
    found = facts(header(hosts), (), (), labels.context(()))
    return [words.text(entry.phrase) for entry in found if entry.label == label]


def test_variables_that_change_rates_are_said_by_host() -> None:
    first = host("node1", variables={"NCCL_ALGO": "Ring", "TF_X": "1"})
    second = host("node2", variables={"NCCL_ALGO": "Ring", "TF_X": "2 | unset"})
    assert said("variables", first, second) == ["NCCL_ALGO=Ring; TF_X=1 on node1; TF_X=2 | unset on node2"]


def test_nothing_is_said_of_variables_where_none_is_set_or_nobody_looked() -> None:
    assert said("variables", host(variables={})) == said("variables", host()) == said("changed", host()) == []


def test_variables_that_workers_do_not_have_are_said_once() -> None:
    changed = ("OMP_PROC_BIND=true (dropped: why)",)
    hosts = [host(name, changed_variables=changed) for name in ("node1", "node2")]
    assert said("changed", *hosts) == list(changed)


# What a report's header says of networks: on GPUs NCCL's cards beside the interface, on CPUs none.


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("cuda", "network ib0 (172.16.0.0/24, 400 Gb/s, NCCL: RDMA by mlx5_0, 1 of 8 cards)"),
        ("cpu", "network ib0 (172.16.0.0/24, 400 Gb/s)"),
    ],
)
def test_the_header_names_nccls_cards_where_nccl_may_run(device: str, said: str) -> None:
    made, records = networks_run()
    network = choose([clouds.dgx(name, number) for number, name in enumerate(("node1", "node2"), 1)], "ib0")
    text = " ".join(
        terminal.render(replace(made, networks=(network,), device=device), records, color=False).split()
    )
    assert f"{said} " in text
