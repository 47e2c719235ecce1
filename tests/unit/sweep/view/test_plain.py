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
from scaling.sweep.state import Ahead, ChildState, PointState, commanded, failing
from scaling.sweep.view import live
from scaling.sweep.view.live import rank_gauges
from scaling.sweep.view.plain import PlainView, number, percent_done, phase, speed
from scaling.text import duration
from tests.support.golden import check_golden
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


def disturbed(text: str) -> PointRecord:
    return record(
        point(1, number=1), retries=("port-taken: x",), warnings=(PointWarning(kind="other", text=text),)
    )


def test_the_lines_of_a_sweep(plain: tuple[io.StringIO, PlainView, Clock]) -> None:
    """Each event has a line. Points that end within 2 s share one, and so do warnings of a kind. After 5 s without
    a line progress has one."""
    stream, screen, clock = plain

    def turns(seconds: float) -> None:
        """Let the event loop turn, so many seconds later."""
        clock.now_s += seconds
        stream.write(f"-- {seconds:g} s\n")
        for _ in range(100):
            screen.progress(measuring(starting(point(2)), 4))

    screen.opened(header(4, hosts=2), 15)
    screen.began(starting(point(2)), 3)
    turns(4.9)
    turns(0.2)
    screen.advanced(Ahead(0.126, 70.0))
    turns(4.9)
    turns(0.2)
    screen.finished(record(point(2)), (), 3, 15)
    turns(1.9)
    turns(0.2)
    screen.advanced(Ahead(0.3, None))
    screen.finished(record(point(2, "comm")), (), 4, 15)
    turns(2.1)
    screen.finished(record(point(2), CRASH), (), 5, 15)
    screen.advanced(Ahead(0.5, 9.0))
    rows = [row(2, 0.9), row(1), *(row(2, 0.8, f"s:{n}") for n in range(4)), row(2, 1.3, learnt_less=True)]
    for done in range(6, 11):
        screen.finished(disturbed(f"warning {done}"), rows, done, 15)
    turns(2.0)
    for done in (11, 12):
        screen.finished(record(point(1)), [row(1)], done, 15)
    turns(2.0)
    screen.note("two\nlines")
    turns(4.9)
    screen.extended(20)
    missing = Failed(cause="missing", message="no CUDA")
    screen.finished(
        replace(record(point(2, strategy="torch:nccl"), missing), ranks=(), measured_s=0.0), (), 13, 120
    )
    screen.closed()
    screen.finished(disturbed("a warning"), (), 120, 120)
    screen.closed()
    screen.closed()
    check_golden("view-plain.txt", stream.getvalue())


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


HELPER = ChildState(task=replace(starting(point(2)).ranks[0].task, role="server-0"))


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
