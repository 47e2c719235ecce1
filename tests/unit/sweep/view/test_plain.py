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
from scaling.sweep.state import HelperState, PointState, commanded, failing
from scaling.sweep.view import live
from scaling.sweep.view.frame import rank_gauges
from scaling.sweep.view.plain import PlainView, number, phase, speed
from scaling.text import duration
from tests.support.inline_child import Clock
from tests.support.points import changed
from tests.support.scripted_points import (
    CRASH,
    everything,
    header,
    measuring,
    point,
    record,
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


def test_plain_prints_a_line_per_event(plain: tuple[io.StringIO, PlainView, Clock]) -> None:
    stream, screen, _ = plain
    screen.opened(header(), 15)
    stream.truncate(stream.seek(0))
    screen.began(starting(point(2)), 3)
    screen.finished(record(point(2)), (), 3, 15, 70.0)
    screen.finished(record(point(2, "comm")), (), 4, 15, None)
    screen.finished(record(point(2), CRASH), (), 5, 15, 9.0)
    screen.finished(
        record(
            point(1, number=1),
            retries=("port-taken: x",),
            warnings=(PointWarning(kind="other", text="a warning"),),
        ),
        (),
        15,
        15,
        0.0,
    )
    screen.extended(20)
    screen.note("two\nlines")
    screen.finished(missing(), (), 6, 120, None)
    screen.closed()
    assert stream.getvalue().splitlines() == [
        "12:03:44 [ 3/15] torch:gloo exchange N=2 round 1: "
        "640.0 images/s, 10 windows in 2.0 s (4.9 s in all), left 1 min 10 s",
        "12:03:44 [ 4/15] torch:gloo comm N=2 round 1: 100.0 ms per exchange, 10 windows in 2.0 s (4.9 s in all)",
        "12:03:44 [ 5/15] torch:gloo exchange N=2 round 1: "
        "FAILED crash(SIGSEGV) on rank 1 (node1): died [31mbadly [0m; log logs/0002.1.log, left 9.0 s",
        "12:03:44 [15/15] torch:gloo exchange N=1 round 2: "
        "320.0 images/s, 10 windows in 2.0 s (4.9 s in all), tried again",
        "12:03:44 [15/15] torch:gloo exchange N=1 round 2: warning: a warning",
        "12:03:44 intervals are wider than asked for: a round more, 20 points in all",
        "12:03:44 two lines",
        "12:03:44 [  6/120] torch:nccl exchange N=2 round 1: FAILED missing: no CUDA",
    ]
    assert all(sign.isprintable() or sign == "\n" for sign in stream.getvalue())


def missing() -> PointRecord:
    failed = Failed(cause="missing", message="no CUDA")
    return replace(record(point(2, strategy="torch:nccl"), failed), ranks=(), measured_s=0.0)


def test_plain_shows_a_sign_of_life_every_30_s(plain: tuple[io.StringIO, PlainView, Clock]) -> None:
    stream, screen, clock = plain
    screen.opened(header(), 15)
    state = measuring(starting(point(2)), 4)
    screen.began(state, 3)
    said = len(stream.getvalue())
    clock.now_s += 29.9
    screen.progress(state)
    assert len(stream.getvalue()) == said
    clock.now_s += 0.2
    for _ in range(100):
        screen.progress(state)
    expected = "12:03:44 [ 3/15] torch:gloo exchange N=2 round 1: measuring: window 5 of 10 (30 s so far)\n"
    assert stream.getvalue()[said:] == expected
    clock.now_s += 29.0
    screen.note("something else was printed")
    clock.now_s += 29.0
    screen.progress(state)
    assert stream.getvalue().count("so far") == 1


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
        (starting(point(2)), "starting: 0 of 2 ready"),
        (replace(starting(point(2)), helpers=(HELPER,)), "starting: 0 of 2 ready, waiting for server-0"),
        (warming(starting(point(2)), 3), "warming: window 4"),
        (measuring(starting(point(2)), 5, slow=(1,)), "measuring: window 5 of 10"),
        (measuring(starting(point(2)), 10), "measuring: window 10 of 10"),
        (
            replace(measuring(starting(point(2)), 5), phase="waiting"),
            "waiting until its cores are quiet: window 6 of 10",
        ),
        (commanded(measuring(starting(point(2)), 10), Finish()), "finishing: 0 of 2 ended"),
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
