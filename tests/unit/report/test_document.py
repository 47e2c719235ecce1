"""What a document is made of; facts and networks of its header; who is compared, in which order, by what."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.measured.traffic import Receipt
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import catalogue
from scaling.analysis.table.rows import Column
from scaling.hosts.networks import choose
from scaling.records.host import HostInfo
from scaling.records.run import PointRecord
from scaling.report import document, labels, quantities
from scaling.report.facts import facts
from scaling.report.formats import markdown, terminal
from scaling.report.material import Material
from scaling.report.parts import Cell, Line, Quantity, Section
from tests.support import clouds, predicted_runs
from tests.support.documents import of_sections
from tests.support.points import changed
from tests.support.predicted_runs import prediction
from tests.support.report_scenes import Run, default_run, frameworks_run, networks_run
from tests.support.scripted_records import asynchronous, failed, header, host, point, record, served, warning

CAUSES = ("contention", "straggling", "exposed", "small_batch", "unexplained")


def test_predictions_of_an_older_version_are_counted_and_named() -> None:
    """Their exchanges stay measured rows; no table has the predictions."""
    told = [prediction(2, 0.96), prediction(8, 0.75)]
    doc = Material(predicted_runs.HEADER, predicted_runs.run(), predictions=told).doc
    assert "PREDICTED: 2 points of an older version's predictions; they are in the run's file alone" in doc.notices
    assert "PREDICTED" in dict(doc.how_to_read)
    assert not any(
        "PREDICTED" in notice for notice in Material(predicted_runs.HEADER, predicted_runs.run()).doc.notices
    )


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


# ---------------------------------------------------------------- who is compared with whom


def test_a_baseline_is_the_whole_of_its_own_work_alone() -> None:
    """A rate at the batch of another model's rows is nobody's 100 %."""
    of_a = [record(point("solo", batch_size=size), 0.1) for size in (32, 64)] + [record(point(), 0.1)]
    of_b = [record(changed(point(kind, batch_size=64), model="other"), 0.1) for kind in ("solo", "exchange")]
    (table,) = Material(header(), [*of_a, *of_b]).doc.baselines
    said = [(str(line.cells["what"]), line.cells["efficiency"]) for line in table.lines]
    assert sum("one device" in name and share != "" for name, share in said) == 2
    assert [share for name, share in said if name.startswith("fake:plain, digits-cnn")] == ["= 100 %", ""]


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
    text = markdown.draw(Material(header(), records).doc)
    (line,) = (line for line in text.splitlines() if line.startswith("| fake:plain"))
    assert line.endswith("| OOM | [^2] |") and "\n[^2]: failed: oom" in text


def test_only_cards_that_were_not_asked_for_are_told_apart() -> None:
    receipt = Receipt(
        verdict="VERIFIED", wanted=("ib0", "ib1"), sent_bytes={"ib0": 5, "ib1": 5}, expected_bytes=10
    )
    assert document.carried(receipt) == "100.0 % on ib0, ib1, 1.00 x expected"


# The block above the tables: whose heap CPU workers have, and which variables.

KEPT = "kept by CPU workers (--malloc keep)"
SYSTEM = "unchanged (--malloc system)"


SETTINGS = ("MALLOC_TRIM_THRESHOLD_=0", "glibc.malloc.arena_max=1")
USERS = "with the user's MALLOC_TRIM_THRESHOLD_=0, glibc.malloc.arena_max=1, else"
MIXED = [host(name, allocator="jemalloc" * (name in ("a", "d"))) for name in "abcd"]


@pytest.mark.parametrize(
    ("hosts", "config", "text"),
    [
        ((), {"malloc": "keep"}, [KEPT]),
        ((), {"malloc": "system"}, [SYSTEM]),
        ((), {"malloc": "keep", "device": "emulated"}, [KEPT]),
        ((), {"malloc": "keep", "device": "cuda"}, []),
        ((), {"malloc": "keep", "device": "cuda", "baseline_device": "cpu"}, [KEPT]),
        ((), {}, []),  # of runs that did not keep it yet
        ([host(allocator="jemalloc", allocator_by="LD_PRELOAD")], {"malloc": "keep"}, ["jemalloc, by LD_PRELOAD"]),
        # Linked to Python, or of an older run, which believed what LD_PRELOAD named.
        ([host(allocator="jemalloc")], {"malloc": "system"}, ["jemalloc"]),
        ([host(allocator="jemalloc", heap_settings=SETTINGS)], {"malloc": "keep"}, ["jemalloc"]),
        ([host(heap_settings=SETTINGS)], {"malloc": "keep"}, [f"{USERS} {KEPT}"]),
        ([host(heap_settings=SETTINGS)], {"malloc": "system"}, [f"{USERS} {SYSTEM}"]),
        (
            [host("a", heap_settings=SETTINGS), host("b")],
            {"malloc": "keep"},
            [f"{USERS} {KEPT} on a; {KEPT} on b"],
        ),
        (MIXED, {"malloc": "keep"}, [f"jemalloc on a d; {KEPT} on b c"]),
    ],
)
def test_whose_heap_workers_have_is_said_by_host(hosts: list[HostInfo], config: Any, text: list[str]) -> None:
    assert said("heap", *hosts, device=config.get("device", "cpu"), config=config) == text


# ---------------------------------------------------------------- variables


def said(label: str, *hosts: HostInfo, **more: Any) -> list[str]:
    found = facts(header(hosts, **more), (), (), labels.context(()))
    return [text for name, text in found if name == label]


def test_variables_are_said_by_host_and_those_that_workers_lack_once() -> None:
    first = host("node1", variables={"NCCL_ALGO": "Ring", "TF_X": "1"})
    second = host("node2", variables={"NCCL_ALGO": "Ring", "TF_X": "2 | unset"})
    assert said("variables", first, second) == ["NCCL_ALGO=Ring; TF_X=1 on node1; TF_X=2 | unset on node2"]
    assert said("variables", host(variables={})) == said("variables", host()) == said("changed", host()) == []
    changed = ("OMP_PROC_BIND=true (dropped: why)",)
    assert said("changed", *(host(name, changed_variables=changed) for name in "ab")) == list(changed)


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


TITLE = "Comparison at each world size"


def text_of(run: Run) -> str:
    return terminal.render(*run, color=False)


def block(text: str, label: str, title: str = TITLE) -> list[str]:
    lines = text.split(title, 1)[1].split("\n\n", 1)[0].splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith(f"  ── {label} ─"))
    after = (index for index, line in enumerate(lines) if index > first and line.startswith("  ──"))
    return lines[first + 1 : next(after, len(lines))]


def names(lines: Sequence[str]) -> list[str]:
    return [line.split()[0] for line in lines if not line.lstrip().startswith("└")]


def contenders(number: int, *strategies: str, **changes: float) -> list[PointRecord]:
    return [record(point("exchange", 2, number, strategy=name), changes.get(name[5:], 0.1)) for name in strategies]


# ---------------------------------------------------------------- who and in which order


def test_an_asynchronous_contender_is_never_ranked_against_synchronous_ones() -> None:
    """It is twice as fast, and the synchronous best is still the best."""
    records = []
    for number in range(3):
        fast = asynchronous(record(point("exchange", 2, number, strategy="fake:async"), 0.05))
        records += [*contenders(number, "fake:a", "fake:b", b=0.11), fast]
    text = text_of((header(), records))
    assert [line.split()[2] for line in block(text, "N = 2")] == ["best", "9.1"]
    (line, *_) = block(text, "N = 2, asynchronous: ranked among themselves")
    assert line.split()[:3] == ["fake:async", "1280", "-"]
    assert "Asynchronous strategies are never ranked against" in " ".join(text.split())


def test_sizes_with_one_contender_are_left_out() -> None:
    made, records = default_run()
    rival = [record(point("exchange", 2, number, strategy="fake:b"), 0.12) for number in range(3)]
    text = text_of((made, [*records, *rival]))
    assert names(block(text, "N = 2")) == ["fake:a", "fake:b"]
    assert "── N = 1 ─" not in text


def test_a_failed_contender_stays_in_it() -> None:
    records = [
        *contenders(0, "fake:a"),
        failed(point("exchange", 2, strategy="fake:b"), "missing", "run ./launch/install"),
    ]
    text = text_of((header(), records))
    assert [line.split() for line in block(text, "N = 2")][1] == ["fake:b", "failed:", "missing", "[2]"]
    assert "[2]  failed: missing: run ./launch/install" in text


def test_unequal_work_is_compared_apart() -> None:
    made, records = frameworks_run()
    other = [replace(one, point=changed(one.point, precision="bf16")) for one in records]
    text = text_of((made, [*records, *other]))
    for precision in ("fp32", "bf16"):
        assert len(names(block(text, "N = 2", f"{TITLE}, {precision}"))) == 6


# ---------------------------------------------------------------- what it claims


def test_one_round_has_a_difference_and_claims_nothing() -> None:
    text = text_of((header(), contenders(0, "fake:a", "fake:b", b=0.2)))
    assert [line.split()[2] for line in block(text, "N = 2")] == ["-", "-50.0"]
    assert "rounds detect" not in text


def test_the_best_by_all_rounds_may_lose_in_those_it_shares() -> None:
    """b was measured once more, in a fast round; in the two that it shares with a it is 10 % slower."""
    times = ((0.1, 0.11), (0.1, 0.11), (None, 0.05))
    records = [
        record(point("exchange", 2, number, strategy=f"fake:{name}"), time)
        for number, pair in enumerate(times)
        for name, time in zip("ab", pair, strict=True)
        if time is not None
    ]
    lines = block(text_of((header(), records)), "N = 2")
    assert lines[0].split()[:3] == ["fake:b", "756.7", "-"]  # a geometric mean
    assert "fake:a" in lines[1] and "10.0 ± 0.0 % faster" in lines[1]


def test_its_remark_and_notes_share_a_line() -> None:
    made, records = frameworks_run()
    noted = [
        replace(one, warnings=(warning("w"),)) if one.point.strategy == "torch:ps-async" else one
        for one in records
    ]
    text = text_of((made, noted))
    assert "images (synchronous: 1.000) [2]\n" in text


# ---------------------------------------------------------------- servers


def with_servers(*counts: int, nodes: Sequence[str] = ("node1",), **changes: str) -> Run:
    """One strategy at N=1, 2, 4, as many times as there are numbers of servers; 0: as many as nodes."""
    records = []
    for number in range(2):
        for n in (1, 2, 4):
            hosts = nodes if n == 4 else nodes[:1]
            for count in counts:
                servers = count or len(hosts)
                at = point("exchange", n, number, strategy="torch:ps-sync", servers=servers, **changes)
                records.append(
                    served(record(at, 0.1 + 0.01 * count, hosts=hosts), *(50.0,) * servers, hosts=hosts)
                )
    return header([host(name) for name in nodes]), records


def test_servers_that_all_share_are_a_fact() -> None:
    assert "\n  servers   1 server, on the training nodes\n" in text_of(with_servers(1))
    text = text_of(with_servers(0, nodes=("node1", "node2")))
    assert "\n  servers   one per node, on the training nodes\n" in text
    assert "\ntorch:ps-sync\n" in text and TITLE not in text


@pytest.mark.parametrize(
    ("count", "said"),
    [(1, "N=2 server-0 on node1, 50 % of a core"), (5, "N=2 5 servers on node1, 50 % of a core")],
)
def test_details_tell_where_servers_ran_and_what_they_used(count: int, said: str) -> None:
    assert said in text_of(with_servers(count))


# ---------------------------------------------------------------- the other formats


def test_text_that_does_not_fit_in_a_row_is_below_it() -> None:
    remark = "staleness 3.01, loss 2.154 after 2,048 images (synchronous: 0.576 to 0.920)"
    made: dict[str, Cell] = {
        "name": "mxnet:dist_async",
        "samples_per_s": Quantity(value=521.5, digits=1),
        "against_best": "best",
    }
    line = Line(cells=made, says="OVERSUBSCRIBED", flags=("OVERSUBSCRIBED", "ASYNC"), remark=remark)
    rate = catalogue.MEAN_RATE.of_unit("images")
    lost = [one for one in catalogue.CAUSES if one.key in ("contention", "straggling", "exposed", "unexplained")]
    columns = (catalogue.NAME, rate, catalogue.AGAINST_BEST, catalogue.EFFICIENCY, *lost)
    text = terminal.draw(of_sections(Section(title="t", columns=columns, lines=(line,))), color=False)
    first, *below = text.splitlines()[-2:]
    assert first.startswith("  mxnet:dist_async") and first.endswith("521.5  best                 OVERSUBSCRIBED")
    assert " ".join(" ".join(below).split()) == f"└ ASYNC {remark}"
    assert max(map(len, [first, *below])) <= 100
