"""The live view in a terminal, and how it closes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any, TextIO, cast

import pytest

from scaling.records.events import Ended, Error, Hello
from scaling.sweep.state import Ahead, failing
from scaling.sweep.view import live as view
from scaling.sweep.view.plain import PlainView, View
from tests.support.inline_child import Clock
from tests.support.scripted_points import (
    CRASH,
    READY,
    everything,
    header,
    measuring,
    point,
    record,
    row,
    running,
    starting,
    tell,
    ten_rows,
    warming,
    window,
)
from tests.support.supervised import ended_by_agent
from tests.support.terminal import Open, Terminal

# The live view as a terminal shows it, read by pyte from a pseudo-terminal.


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Open a live view in a terminal of a size; the view is closed at the end."""
    opened: list[tuple[Terminal, View]] = []

    def make(columns: int = 80, lines: int = 24, encoding: str = "utf-8") -> tuple[Terminal, View, Clock]:
        for name, value in (("COLUMNS", str(columns)), ("LINES", str(lines)), ("TERM", "xterm-256color")):
            monkeypatch.setenv(name, value)
        terminal, clock = Terminal(columns, lines, encoding), Clock(1000.0)
        screen = view.make("live", terminal.stream, clock=clock)
        opened.append((terminal, screen))
        return terminal, screen, clock

    monkeypatch.delenv("NO_COLOR", raising=False)
    yield make
    for terminal, screen in opened:
        screen.closed()
        terminal.close()


@pytest.mark.parametrize("kind", ["live", "plain"])
def test_a_terminal_that_is_gone_costs_nothing(kind: Any, live: Open) -> None:
    terminal, _, clock = live()
    terminal.hang_up()
    screen = view.make(kind, terminal.stream, clock=clock)
    everything(screen, clock)


@pytest.mark.parametrize("kind", ["live", "plain"])
def test_what_the_encoding_lacks_is_replaced(kind: Any, live: Open) -> None:
    terminal, _, clock = live(160, encoding="ascii")
    screen = view.make(kind, terminal.stream, clock=clock)
    notes = ["r\u00e9sum\u00e9 of \u2603"]
    running(screen, clock, measuring(starting(point(2))), ten_rows(), notes)
    text = "\n".join(terminal.look())
    assert text.isascii()
    assert "r?sum? of ?" in text
    assert ("0 ====" in text) == (kind == "live")


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(view.make("live", io.StringIO()), PlainView)


@pytest.mark.parametrize("columns", [80, 160])
def test_two_ranks(live: Open, columns: int) -> None:
    terminal, screen, clock = live(columns)
    state = measuring(starting(point(2, number=1)), 4, slow=(1,))
    running(screen, clock, state, [row(1, 1.0), row(2)])
    lines = terminal.look()
    assert lines[0].startswith("scaling  torch:gloo · digits-cnn on digits · cpu · 2 ranks on 1 host")
    assert re.fullmatch(r"━+╸?─+ +37 %  22/60 points  12 s  left 4 min 28 s", lines[1])
    assert lines[3].split() == ["strategy", "N", "images/s", "efficiency"]
    assert lines[4].startswith("torch:gloo  1  320.0 ± 1.5  100.0 % ± 0.4")
    assert lines[5].startswith("torch:gloo  2  608.0 ± 1.5   95.0 % ± 0.4")
    assert re.fullmatch(r"23  torch:gloo exchange N=2 round 2  measuring: window 4 of 10 +12 s", lines[7])
    assert re.fullmatch(r"0 ━+╸?─+  4/10  320\.0 images/s  measuring", lines[8])
    assert re.fullmatch(r"1 ━+╸?─+  3/10  320\.0 images/s  measuring", lines[9])
    assert lines[8].count("━") > lines[9].count("━")
    assert lines[10:] == [""] * 14
    # Open MPI 5 forwards whole lines: a frame that did not end its last one would show it a second late.
    assert (terminal.screen.cursor.x, terminal.screen.cursor.y) == (0, 10)


@pytest.mark.parametrize("columns", [80, 160])
def test_ranks_that_learnt_less_have_no_efficiency(live: Open, columns: int) -> None:
    """As in the report: theirs is not comparable."""
    terminal, screen, clock = live(columns)
    stale = row(2, 1.3, "torch:ps", synchronous=False, learnt_less=True, flags=("ASYNC",))
    running(screen, clock, measuring(starting(point(2))), [row(2), stale])
    lines = terminal.look()
    assert lines[4].startswith("torch:gloo  2  608.0 ± 1.5  95.0 % ± 0.4")
    assert re.fullmatch(r"torch:ps    2  832\.0 ± 1\.5       – +ASYNC", lines[5])


@pytest.mark.parametrize("columns", [80, 160])
def test_sixteen_ranks_stand_beside_the_table(live: Open, columns: int) -> None:
    terminal, screen, clock = live(columns)
    state = measuring(starting(point(16), hosts=4), 7, slow=(3,))
    running(screen, clock, state, ten_rows(), ["first", "second", "third", "fourth" * 40])
    lines = terminal.look()
    text = "\n".join(lines)
    assert lines[0].startswith("scaling  ")
    for rank in range(16):
        done = 6 if rank == 3 else 7
        assert re.search(rf"\b{rank} node{rank // 4 + 1} ━+╸?─+  {done}/10 +320\.0", text)
    assert "FAILED crash(SIGSEGV)" in text
    assert re.search(r"torch:gloo  16  3072\.0 ± 1\.5  60\.0 % ± 0\.4 .*UNSETTLED", text)
    assert "(5 above)" in text
    assert lines[20:22] == ["! second", "! third"]
    assert re.fullmatch("! (fourth)+(f|fo|fou|four|fourt)?…", lines[22])
    assert lines[23] == ""


@pytest.mark.parametrize("columns", [80, 160])
def test_above_32_ranks_each_node_shows_its_slowest(live: Open, columns: int) -> None:
    terminal, screen, clock = live(columns)
    state = measuring(starting(point(64), hosts=4), 7, slow=(17,))
    running(screen, clock, state, ten_rows())
    text = "\n".join(terminal.look())
    found = re.findall(r"(node\d) x16 ━+╸?─+  (\d)/10  320\.0 images/s  measuring", text)
    assert found == [("node1", "7"), ("node2", "6"), ("node3", "7"), ("node4", "7")]
    assert "torch:nccl   1   310.4 ± 1.5  97.0 % ± 0.4" in text


def test_thirty_two_ranks_still_have_a_bar_each(live: Open) -> None:
    terminal, screen, clock = live(80)
    running(screen, clock, measuring(starting(point(32), hosts=4), 7), ten_rows(), ["a", "b", "c"])
    text = "\n".join(terminal.look())
    assert text.count(" 7/10 ") == 32
    assert "torch:gloo  16  3072.0" in text


def test_many_nodes_show_those_that_hold_up_the_others(live: Open) -> None:
    terminal, screen, clock = live(80)
    running(screen, clock, measuring(starting(point(1024), hosts=128), 7, slow=(8 * 99,)), ten_rows())
    text = "\n".join(terminal.look())
    assert re.search(r"node100 x8 ━+╸?─+  6/10", text)
    hidden = re.search(r"… and (\d+) more nodes, none behind these", text)
    assert hidden is not None
    assert int(hidden[1]) + text.count(" x8 ") == 128
    assert "torch:gloo  16  3072.0" in text


@pytest.mark.parametrize(("columns", "lines"), [(20, 3), (40, 6), (40, 24), (80, 10), (80, 24), (500, 60)])
@pytest.mark.parametrize(("ranks", "hosts"), [(1, 1), (16, 1), (33, 33), (1024, 128)])
def test_fits_any_terminal(live: Open, columns: int, lines: int, ranks: int, hosts: int) -> None:
    terminal, screen, clock = live(columns, lines)
    of = point(ranks, strategy="a.long.module.from.outside:with-a-long-mode")
    state = failing(measuring(starting(of, hosts), 3), CRASH)
    running(screen, clock, state, ten_rows(), ["\u4f60\u597d" * 50, "note " * 100])
    shown = terminal.look()
    assert shown[0].startswith("scaling")
    assert "━" in shown[1]
    assert shown[-1] == ""


def test_states_of_ranks_have_words_and_colours(live: Open) -> None:
    terminal, screen, clock = live(80)
    state = tell(starting(point(4), hosts=2), 1, Hello(pid=1, affinity=()))
    state = tell(state, 2, Hello(pid=1, affinity=()))
    state = tell(state, 2, READY)
    running(screen, clock, state)
    words = [line.split()[-1] for line in terminal.look() if " node" in line and "/10" in line]
    assert words == ["start", "import", "ready", "start"]

    state = measuring(starting(point(4), hosts=2), 4)
    for index in range(4, 10):
        state = tell(state, 0, window(index, measured=True))
    state = tell(state, 1, Error(cause="oom", message="out of memory"))
    state = tell(state, 3, Ended(exit=ended_by_agent("cancelled")))
    clock.now_s += 1
    screen.progress(state)
    words = [line.split()[-1] for line in terminal.look() if " node" in line and "/10" in line]
    assert words == ["done", "failed", "measuring", "cancelled"]
    assert terminal.colour("FAILED oom on rank 1 (node1)") == terminal.colour("failed") == "red"
    assert terminal.colour("done") == "green"


def test_failures_are_red_and_other_notes_yellow_whatever_they_say(live: Open) -> None:
    terminal, screen, _ = live(160)
    screen.opened(header(), 15)
    screen.finished(record(point(2), CRASH), (), 1, 15)
    screen.note("FAILED is only a word here")
    screen.closed()
    assert terminal.colour("FAILED crash(SIGSEGV)") == "red"
    assert terminal.colour("FAILED is only a word") != "red"


def test_warm_up_shows_the_windows_of_its_command(live: Open) -> None:
    terminal, screen, clock = live(80)
    running(screen, clock, warming(starting(point(2)), 3))
    text = "\n".join(terminal.look())
    assert "warming: window 4" in text
    assert len(re.findall(r"\d ━+╸?─+ 3/4  320\.0 images/s  warming", text)) == 2


def test_comm_shows_milliseconds_of_an_exchange(live: Open) -> None:
    terminal, screen, clock = live(80)
    running(screen, clock, measuring(starting(point(2, "comm")), 4))
    assert "\n".join(terminal.look()).count("4/10        100.0 ms  measuring") == 2


def test_progress_and_time_left_before_the_first_point_ends(live: Open) -> None:
    terminal, screen, clock = live(80)
    screen.opened(header(), 60)
    assert terminal.look()[1].endswith("0 %  0/60 points  0.0 s  left 1 min 30 s")
    clock.now_s += 20
    screen.advanced(Ahead(0.5, 70.0))
    screen.progress(starting(point(2)))
    line = terminal.look()[1]
    assert line.endswith("50 %  0/60 points  20 s  left 1 min 10 s")
    assert line.count("━") == pytest.approx(line.count("─"), abs=1)
    clock.now_s += 100
    screen.advanced(Ahead(0.6, None))
    screen.extended(80)
    assert terminal.look()[1].endswith("60 %  0/80 points  2 min 0 s  left unknown")


def test_a_smaller_frame_leaves_nothing_of_the_larger(live: Open) -> None:
    terminal, screen, clock = live(80)
    running(screen, clock, measuring(starting(point(16), hosts=4)), ten_rows(), ["a", "b", "c"])
    assert len([line for line in terminal.look() if line]) > 15
    clock.now_s += 1
    screen.finished(record(point(2)), [row(1)], 23, 60)
    lines = terminal.look()
    assert [line.split()[0] for line in lines if line][2:] == ["strategy", "torch:gloo", "!", "!", "!"]


def test_a_thousand_calls_in_a_second_refresh_once(live: Open) -> None:
    terminal, screen, clock = live(80)
    screen.opened(header(), 60)
    terminal.look()
    assert terminal.frames == 1
    state = measuring(starting(point(2)), 4)
    screen.began(state, 1)
    for _ in range(1000):
        clock.now_s += 0.0011
        screen.progress(state)
        screen.note("a storm of notes")
    terminal.look()
    assert terminal.frames == 2


# What a live view leaves behind in a terminal when it closes, read by pyte.


def test_closing_frees_the_cursor_and_leaves_progress_and_notes(live: Open) -> None:
    terminal, screen, clock = live(80)
    running(screen, clock, measuring(starting(point(16), hosts=4)), ten_rows(), ["a", "b", "c", "d"])
    terminal.look()
    assert terminal.is_cursor_hidden()
    screen.closed()
    lines = terminal.look()
    assert not terminal.is_cursor_hidden()
    assert [line for line in lines[2:] if line] == ["! b", "! c", "! d"]
    assert (terminal.screen.cursor.x, terminal.screen.cursor.y) == (0, 7)
    frames = terminal.frames
    clock.now_s += 5
    screen.closed()
    screen.note("too late")
    assert terminal.look() == lines
    assert terminal.frames == frames


def test_closing_where_the_terminal_is_now(live: Open) -> None:
    old, screen, clock = live(80)
    now, _, _ = live(80)
    running(screen, clock, measuring(starting(point(2))))
    now.write("\x1b[?25l")
    screen.closed(now.stream)
    assert old.is_cursor_hidden()
    assert not now.is_cursor_hidden()
    assert now.look()[0].startswith("scaling  torch:gloo")


def test_closing_before_opening_writes_nothing(live: Open) -> None:
    terminal, screen, _ = live(80)
    screen.closed()
    assert terminal.look() == [""] * 24


class Halting:
    """A stream on which a write is interrupted halfway, once: at write number `at`."""

    encoding = "utf-8"

    def __init__(self, stream: TextIO, at: int) -> None:
        self._stream = stream
        self._at = at

    def write(self, text: str) -> int:
        self._at -= 1
        if self._at == 0:
            self._stream.write(text[: len(text) // 2])
            raise KeyboardInterrupt
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()


@pytest.mark.parametrize("at", [2, 3, 4])
def test_closing_after_an_interrupted_refresh(live: Open, at: int) -> None:
    terminal, _, clock = live(80)
    screen = view.make("live", cast(TextIO, Halting(terminal.stream, at)), clock=clock)
    with pytest.raises(KeyboardInterrupt):
        running(screen, clock, measuring(starting(point(2))), ten_rows())
        clock.now_s += 1
        screen.note("a third frame")
    assert terminal.is_cursor_hidden()
    screen.closed()
    assert not terminal.is_cursor_hidden()
