"""The comparison of contenders: who is in it, in which order, and what it claims."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from scaling.analysis.table import catalogue
from scaling.records.run import PointRecord
from scaling.report.formats import terminal
from scaling.report.parts import Cell, Line, Quantity, Section
from tests.support.documents import of_sections
from tests.support.points import changed
from tests.support.report_scenes import Run, default_run, frameworks_run
from tests.support.scripted_records import asynchronous, failed, header, host, point, record, served, warning

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
