"""The plain view: exact lines on scripted states."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from scaling.records.events import Failed
from scaling.records.run import PointRecord, PointWarning
from scaling.records.task import Finish
from scaling.sweep.state import Ahead, PointState, commanded, failing
from scaling.sweep.state import ChildState as HelperState
from scaling.sweep.view import live
from scaling.sweep.view.live import rank_gauges
from scaling.sweep.view.plain import PlainView, number, percent_done, phase, speed
from scaling.text import duration
from tests.support.inline_child import Clock
from tests.support.points import POINT, changed
from tests.support.scripted_points import (
    CRASH,
    everything,
    header,
    measuring,
    point,
    record,
    row,
    starting,
    warming,
)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def plain(utc: None) -> tuple[io.StringIO, PlainView, Clock]:
    stream, clock = io.StringIO(), Clock(1000.0)
    return stream, PlainView(stream, clock, unix_clock=lambda: 43424.0), clock


def test_plain_says_what_runs(plain: tuple[io.StringIO, PlainView, Clock]) -> None:
    stream, screen, _ = plain
    screen.opened(header(4, hosts=2), 15)
    assert stream.getvalue().splitlines() == [
        "12:03:44 scaling 0.1.0: torch:gloo · digits-cnn on digits · cpu · 4 ranks on 2 hosts · "
        "no NVIDIA GPU on node1",
        "12:03:44 batch: 32 images per device; world sizes: 1, 4",
        "12:03:44 2 hosts (node1, node2): 2 ranks, 2 cores of Xeon each",
        "12:03:44 15 points planned, about 1 min 30 s",
    ]


def lines(plain: tuple[io.StringIO, PlainView, Clock]) -> list[str]:
    """What was printed since the last look."""
    stream, *_ = plain
    found = stream.getvalue().splitlines()
    stream.truncate(stream.seek(0))
    return found


def late(plain: tuple[io.StringIO, PlainView, Clock], seconds: float) -> list[str]:
    """The lines of a turn of the event loop `seconds` later."""
    _, screen, clock = plain
    clock.now_s += seconds
    for _ in range(100):
        screen.progress(measuring(starting(point(2)), 4))
    return lines(plain)


def test_plain_prints_a_line_per_event(plain: tuple[io.StringIO, PlainView, Clock]) -> None:
    _, screen, _ = plain
    screen.opened(header(), 15)
    lines(plain)
    screen.began(starting(point(2)), 3)
    assert late(plain, 1.9) == []
    screen.advanced(Ahead(0.2, 70.0))
    screen.finished(record(point(2)), (), 3, 15)
    assert late(plain, 0.2) == [
        "12:03:44 [ 3/15] torch:gloo exchange N=2 round 1: "
        "640.0 images/s, 10 windows in 2.0 s (4.9 s in all), left 1 min 10 s"
    ]
    screen.advanced(Ahead(0.3, None))
    screen.finished(record(point(2, "comm")), (), 4, 15)
    assert late(plain, 2.1) == [
        "12:03:44 [ 4/15] torch:gloo comm N=2 round 1: "
        "100.0 ms per exchange, 10 windows in 2.0 s (4.9 s in all), left unknown"
    ]
    screen.finished(record(point(2), CRASH), (), 5, 15)
    assert lines(plain) == [
        "12:03:44 [ 5/15] torch:gloo exchange N=2 round 1: "
        "FAILED crash(SIGSEGV) on rank 1 (node1): died [31mbadly [0m; log logs/0002.1.log"
    ]
    screen.extended(20)
    screen.note("two\nlines")
    screen.finished(missing(), (), 6, 120)
    screen.closed()
    assert lines(plain) == [
        "12:03:44 one more round, 20 points in all",
        "12:03:44 two lines",
        "12:03:44 [  6/120] torch:nccl exchange N=2 round 1: FAILED missing: no CUDA",
    ]


def missing() -> PointRecord:
    failed = Failed(cause="missing", message="no CUDA")
    return replace(record(point(2, strategy="torch:nccl"), failed), ranks=(), measured_s=0.0)


def disturbed(text: str) -> PointRecord:
    return record(
        point(1, number=1), retries=("port-taken: x",), warnings=(PointWarning(kind="other", text=text),)
    )


def test_the_last_point_is_printed_when_the_view_closes(plain: tuple[io.StringIO, PlainView, Clock]) -> None:
    _, screen, _ = plain
    screen.opened(header(), 15)
    lines(plain)
    screen.finished(disturbed("a warning"), (), 15, 15)
    screen.closed()
    screen.closed()
    assert lines(plain) == [
        "12:03:44 [15/15] torch:gloo exchange N=1 round 2: "
        "320.0 images/s, 10 windows in 2.0 s (4.9 s in all), tried again",
        "12:03:44 [15/15] warning: torch:gloo exchange N=1 round 2: a warning",
    ]


def test_points_that_end_together_share_a_line(plain: tuple[io.StringIO, PlainView, Clock]) -> None:
    """The efficiencies of the largest world size stand in it; a kind of warning has a line."""
    _, screen, _ = plain
    screen.opened(header(), 15)
    lines(plain)
    rows = [row(2, 0.9), row(1), *(row(2, 0.8, f"s:{n}") for n in range(4)), row(2, 1.3, learnt_less=True)]
    screen.advanced(Ahead(0.5, 9.0))
    for done in range(3, 8):
        screen.finished(disturbed(f"warning {done}"), rows, done, 15)
    assert late(plain, 2.0) == [
        "12:03:44 [ 7/15] 5 points measured; efficiency at N=2 so far: torch:gloo 90.0 % ± 0.4, "
        "s:0 80.0 % ± 0.4, s:1 80.0 % ± 0.4, s:2 80.0 % ± 0.4 and 1 more, left 9.0 s",
        "12:03:44 [ 7/15] warning: torch:gloo exchange N=1 round 2: warning 3 (and 4 more like it)",
    ]
    screen.finished(record(point(1)), [row(1)], 8, 15)
    screen.finished(record(point(1)), [row(1)], 9, 15)
    assert late(plain, 2.0) == ["12:03:44 [ 9/15] 2 points measured, left 9.0 s"]


def test_plain_shows_progress_every_5_s(plain: tuple[io.StringIO, PlainView, Clock]) -> None:
    _, screen, _ = plain
    screen.opened(header(), 15)
    lines(plain)
    screen.began(starting(point(2)), 3)
    said = "torch:gloo exchange N=2 round 1: measuring: window 5 of 10"
    assert late(plain, 4.9) == []
    assert late(plain, 0.2) == [f"12:03:44 [ 2/15] 0 % done, left 1 min 30 s; {said}"]
    screen.advanced(Ahead(0.126, 70.0))
    assert late(plain, 4.9) == []
    assert late(plain, 0.2) == [f"12:03:44 [ 2/15] 12 % done, left 1 min 10 s; {said}"]
    screen.note("something else was printed")
    lines(plain)
    assert late(plain, 4.9) == []


@pytest.mark.parametrize(("share", "words"), [(0.0, "0 %"), (0.999, "99 %"), (0.29, "29 %"), (1.0, "100 %")])
def test_a_share_is_rounded_down(share: float, words: str) -> None:
    assert percent_done(share) == words


def test_plain_flushes_each_line() -> None:
    class Buffered(io.StringIO):
        waiting = False

        def write(self, text: str) -> int:
            assert not self.waiting
            self.waiting = text.endswith("\n")
            return super().write(text)

        def flush(self) -> None:
            self.waiting = False

    stream = Buffered()
    PlainView(stream).opened(header(), 15)
    assert stream.getvalue().count("\n") == 4
    assert not stream.waiting


HELPER = HelperState(task=replace(starting(point(2)).ranks[0].task, role="server-0"))


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (starting(point(2)), "starting: 0 of 2 ranks ready"),
        (replace(starting(point(2)), helpers=(HELPER,)), "starting: 0 of 2 ranks ready, waiting for server-0"),
        (warming(starting(point(2)), 3), "warming: window 4"),
        (measuring(starting(point(2)), 5, slow=(1,)), "measuring: window 5 of 10"),
        (measuring(starting(point(2)), 10), "measuring: window 10 of 10"),
        (
            replace(measuring(starting(point(2)), 5), phase="waiting"),
            "waiting until its cores are quiet: window 6 of 10",
        ),
        (commanded(measuring(starting(point(2)), 10), Finish()), "finishing: 0 of 2 ranks ended"),
        (failing(starting(point(2)), CRASH), "FAILED crash(SIGSEGV) on rank 1 (node1); ending the others"),
    ],
)
def test_phase(state: PointState, words: str) -> None:
    assert phase(state) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "0.0 s"), (4.94, "4.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (70, "1 min 10 s"),
     (3599.6, "1 h 0 min"), (7500, "2 h 5 min")],
)  # fmt: skip
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"), [(12345.6, "12346"), (602.13, "602.1"), (1.234, "1.23"), (0.0123, "0.0123")]
)
def test_number(value: float, words: str) -> None:
    assert number(value) == words


def test_none_prints_nothing() -> None:
    stream = io.StringIO()
    screen = live.make("none", stream)
    everything(screen, Clock(1000.0))
    assert stream.getvalue() == ""


def test_rates_are_of_what_the_workload_s_samples_are() -> None:
    texts = changed(point(2), unit="sequences")
    assert speed(record(texts)) == "640.0 sequences/s"
    assert {gauge.unit for gauge in rank_gauges(measuring(starting(texts)))} == {" sequences/s"}


def test_tokens_are_those_of_whole_sequences() -> None:
    tokens = changed(point(2), unit="tokens", sequence_length=100)
    assert speed(record(tokens)) == "64000 tokens/s"
    assert {gauge.value for gauge in rank_gauges(measuring(starting(tokens)))} == {"32000"}


def test_progress_names_the_network_of_an_exchange() -> None:
    over = changed(POINT, interconnect="ib0", world_size=4)
    assert over.label == "fake:a over ib0 exchange N=4 round 1"
    assert changed(over, kind="solo").label == "fake:a solo N=4 round 1"
    assert changed(over, interconnect="auto").label == "fake:a exchange N=4 round 1"
