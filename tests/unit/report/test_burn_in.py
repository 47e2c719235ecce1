"""The report of a burn-in: its tables, its figure, its JSON, and what it hides."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.analysis.table.burn_in import summarized
from scaling.records.burn_in import LinkErrors, PointSummary, is_kept
from scaling.records.run import Header, PointRecord
from scaling.report import __main__ as command
from scaling.report.anonymous import Disguise, hosts_of
from scaling.report.figures import FIGURES
from scaling.report.figures.parts import Strips
from scaling.report.formats import html, terminal
from scaling.report.formats import json as schema
from scaling.report.material import Material
from tests.support.golden import check_golden
from tests.support.scripted_records import failed, header, host, point, record, written

HOSTS = ("alpha", "beta")
ROUNDS, ROUND_S = 150, 48.0
FAILS, STALLS = 90, 100


def made_header() -> Header:
    return header([host(name) for name in HOSTS], config={"for": "2h", "rounds": 2, "windows": 3})


def points(number: int) -> Iterator[PointRecord]:
    """One round: the exchange becomes 3 % slower in all; one point fails, one step stalls."""
    exchange = point("exchange", 2, number)
    slower = 0.2 * (1 + 0.03 * number / ROUNDS) * (1.002 if number % 2 else 1.0)
    yield record(point("each", 2, number), 0.1 * (1.001 if number % 3 else 1.0), hosts=HOSTS)
    if number == FAILS:
        yield failed(exchange, "hang", "no event for 120 s")
    else:
        yield record(exchange, slower, hosts=HOSTS)


def summary(of: PointRecord) -> PointSummary:
    number = of.point.round
    found = summarized(of, ROUND_S * number, ROUND_S * (number + 1))
    if of.point.kind != "exchange":
        return found
    if number == STALLS:
        found = replace(found, worst_s=4.2, worst_rank=1, worst_host="beta")
    errors = (LinkErrors(host="beta", card="mlx5_0/1", counter="symbol_error", count=3),) if number > 120 else ()
    hot = {"throttled": 5, "reasons": ("hw thermal",)} if 40 < number < 60 else {}
    return replace(found, readings=50, **hot, repeated=int(number % 10 == 0), link_errors=errors)


@cache
def run() -> tuple[Header, tuple[PointRecord, ...], tuple[PointSummary, ...]]:
    made = [one for number in range(ROUNDS) for one in points(number)]
    kept = tuple(one for one in made if is_kept(one.point.round, ROUNDS))
    return made_header(), kept, tuple(map(summary, made))


def material() -> Material:
    head, records, summaries = run()
    return Material(head, records, summaries=summaries)


def test_the_tables_of_a_burn_in() -> None:
    check_golden("burn-in.txt", terminal.whole(material().doc, color=False))


def test_a_run_of_few_rounds_has_no_such_table() -> None:
    few = Material(header(), [one for number in range(5) for one in points(number)])
    assert few.over_time == ()
    assert not any("Over time" in section.title for section in few.doc.sections)
    assert list(FIGURES["burn-in"](few)) == []


def test_the_figure_has_a_strip_for_what_was_found() -> None:
    (figure,) = FIGURES["burn-in"](material())
    assert isinstance(figure.body, Strips)
    assert figure.body.across == "hours"
    titles = [strip.title for strip in figure.body.strips]
    assert titles == [
        "images/s", "one device alone, images/s", "step, means of windows, ms: p50, p95 (line), p99",
        "longest step, ms", "throttled, % of readings", "windows repeated", "link errors", "failed rounds",
    ]  # fmt: skip
    assert len(figure.body.strips[1].readings) == ROUNDS
    assert len(figure.body.strips[0].readings) == ROUNDS - 1, "a failed round has no rate"
    assert max(one.high for one in figure.body.strips[3].readings) == pytest.approx(4200)


def test_the_page_draws_it() -> None:
    text = html.render(material())
    assert "Over time: fake:a N=2" in text
    assert "longest step, ms" in text


def file_of(folder: Path) -> Path:
    head, records, summaries = run()
    lines: list[Any] = [*records, *summaries]
    return written(folder, (head, lines))


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert command.main(argv) == 0
    return capsys.readouterr().out


def test_json_has_it_and_fits_the_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, str(file_of(tmp_path / "run")), "--format", "json")
    found = json_module.loads(text)
    exchange, alone = found["over_time"]
    assert (exchange["kind"], exchange["worst_host"], exchange["worst_round"]) == ("exchange", "beta", STALLS)
    assert (exchange["whole"]["rounds"], exchange["failures"]) == (ROUNDS - 1, {"hang": 1})
    assert exchange["drifts"] and exchange["drift"]["mean"] == pytest.approx(-0.03, abs=0.003)
    assert (alone["kind"], alone["alone"], alone["drifts"]) == ("each", True, False)
    assert json_module.loads(msgspec.json.encode(msgspec.json.decode(text, type=schema.report_type()))) == found


def test_the_report_of_the_file_is_that_of_its_summaries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, str(file_of(tmp_path / "run")), "--verbose")
    assert text == terminal.whole(material().doc, color=False)


def test_the_last_screen_has_it_only_of_a_run_that_was_asked_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, records, _ = run()
    assert "Over time: fake:a N=2" in said(capsys, str(file_of(tmp_path / "run")))
    many = written(tmp_path / "many", (replace(head, config={"rounds": 38}), records))
    assert "Over time" not in said(capsys, str(many))
    assert "Over time" in said(capsys, str(many), "--verbose")


def test_several_runs_together_have_no_common_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = [str(file_of(tmp_path / name)) for name in ("a", "b")]
    assert "Over time" not in said(capsys, *two, "--verbose")


def test_hosts_are_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, str(file_of(tmp_path / "run")), "--verbose", "--anonymous")
    assert "longest: rank 1 on node2" in text
    assert not any(name in text for name in HOSTS)
    head, records, _ = run()
    assert not Disguise(hosts_of(head, records)).material(material()).lacks


@pytest.mark.parametrize(("asked", "lacks"), [("2h", False), ("3h", True)])
def test_it_can_be_resumed_while_a_round_fits(asked: str, lacks: bool) -> None:
    head, records, summaries = run()
    config = {**head.config, "for": asked}
    assert Material(replace(head, config=config), records, summaries=summaries).lacks is lacks
