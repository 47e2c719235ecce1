"""The live view of a running sweep in a terminal; `make` chooses between it, plain lines and none.

Rank 0 calls a view on cores that are being measured: it draws at most once a second. rich is imported only when a
live view is made, so that other ranks do not pay for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, cast

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.rows import Row
from scaling.records.events import Failed
from scaling.records.run import Header, PointRecord
from scaling.sweep.state import Ahead, ChildState, PointState
from scaling.sweep.view.plain import (
    PlainView,
    Stream,
    View,
    claimed,
    failure,
    headline,
    left,
    name_of,
    number,
    percent_done,
    phase,
)
from scaling.text import decimals, duration, one_line, plus_minus, printable
from scaling.transport import terminal
from scaling.transport.terminal import ViewKind

if TYPE_CHECKING:
    from rich.text import Text


# ---------------------------------------------------------------- ranks
# A frame is lines of styled text that fit a terminal. Ranks are in as few columns as fit 8 lines. A short terminal
# shows the last rows of the table. A rich.Table costs ten times as much as plain spans, on cores that are being
# measured.


HOST_MAX = 12
# From the state that delays a point most to the one that delays it least.
STATES = ("failed", "cancelled", "start", "import", "ready", "warming", "measuring", "done")


class Gauge(NamedTuple):
    """A bar: one rank, or the slowest rank of a node. `host` is empty if the name has it or all hosts are one."""

    name: str
    host: str
    done: int
    total: int
    value: str
    unit: str
    state: str


def _advance(gauge: Gauge) -> tuple[int, int]:
    return STATES.index(gauge.state), gauge.done


def rank_gauges(state: PointState) -> list[Gauge]:
    """Return a gauge for each rank, named by its number, with its host if there are several."""
    hosts = state.ranks[0].task.hosts
    several = len(set(hosts)) > 1
    return [
        _gauge(str(rank.task.rank), _short(host) if several else "", rank, state)
        for host, rank in zip(hosts, state.ranks, strict=True)
    ]


def node_gauges(state: PointState) -> list[Gauge]:
    """Return a gauge for each node: that of its slowest rank."""
    by_host: dict[str, list[ChildState]] = {}
    for host, rank in zip(state.ranks[0].task.hosts, state.ranks, strict=True):
        by_host.setdefault(host, []).append(rank)
    return [
        min((_gauge(f"{_short(host)} x{len(local)}", "", rank, state) for rank in local), key=_advance)
        for host, local in by_host.items()
    ]


def _short(host: str) -> str:
    return host.partition(".")[0][:HOST_MAX]


def _gauge(name: str, host: str, rank: ChildState, state: PointState) -> Gauge:
    is_warm = bool(rank.windows) or state.phase not in ("starting", "warming")
    done, total = len(rank.windows), state.expected
    if not is_warm and state.command is not None:
        done, total = rank.in_chunk, getattr(state.command, "windows", 0)
    value, unit = _pace(rank, state)
    return Gauge(name, host, done, total, value, unit, _state_of(rank, state))


def _state_of(rank: ChildState, state: PointState) -> str:
    outcome = rank.ending.outcome if rank.ended else None
    if rank.error is not None or isinstance(outcome, Failed):
        return "cancelled" if isinstance(outcome, Failed) and outcome.cause == "cancelled" else "failed"
    if len(rank.windows) >= state.expected or rank.result is not None:
        return "done"
    if state.phase in ("warming", "measuring"):
        return state.phase
    if state.phase == "evaluating":
        return "measuring"
    return "ready" if rank.ready else "import" if rank.pid else "start"


def _pace(rank: ChildState, state: PointState) -> tuple[str, str]:
    windows = rank.windows or rank.warmup
    if not windows or windows[-1].seconds <= 0:
        return "", ""
    last, point = windows[-1], state.point
    seconds = last.seconds / point.hardware.dilate
    if point.kind == "comm":
        return number(seconds / last.steps * 1e3), " ms"
    return number(last.samples * point.workload.units_per_sample / seconds), f" {point.workload.unit}/s"


# ---------------------------------------------------------------- frame

Span = tuple[str, str]  # text, rich style
Line = list[Span]

MAX_RANKS = 32
RANK_LINES = 8
NOTES = 3
TABLE_LINES = 4
CELL_FIXED, CELL_GAP, CELL_WIDE, CELL_HOST = 18, 3, 60, 32
NAME_MAX = 28
VALUE, STATE, SHARE = 9, 9, 24

STYLES = {
    "failed": "red", "cancelled": "dim", "start": "dim", "import": "magenta", "ready": "blue",
    "warming": "yellow", "waiting": "yellow", "measuring": "cyan", "done": "green",
}  # fmt: skip


class Glyphs(NamedTuple):
    full: str = "━"
    half: str = "╸"
    rest: str = "─"
    none: str = "–"
    plus_minus: str = "±"
    more: str = "…"


ASCII = Glyphs(full="=", half="-", rest="-", none="-", plus_minus="+-", more="~")


class Note(NamedTuple):
    text: str
    is_failure: bool = False


class Scene(NamedTuple):
    """The content of a frame. `ahead` is None once the sweep is over."""

    title: str = ""
    done: int = 0
    total: int = 0
    elapsed_s: float = 0.0
    ahead: Ahead | None = None
    running: PointState | None = None
    number: int = 0
    running_s: float = 0.0
    rows: Sequence[Row] = ()
    notes: Sequence[Note] = ()


def frame(scene: Scene, *, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return at most `height` lines of at most `width` characters."""
    title: Line = [("scaling  ", "bold"), (_clip(scene.title, width - 9, glyphs), "dim")]
    head = [title, _progress(scene, width, glyphs)]
    notes = _notes(scene.notes, width, glyphs)
    room = height - len(head) - len(notes)
    wanted = min(len(scene.rows) + 2, TABLE_LINES) if scene.rows else 0
    point = _point(scene, width, max(room - wanted, 4), glyphs) if scene.running else []
    table = _table(scene.rows, width, room - len(point), glyphs)
    return (head + table + point + notes)[:height]


def _clip(text: str, width: int, glyphs: Glyphs) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + glyphs.more


def _bar(done: int, total: int, width: int, style: str, glyphs: Glyphs) -> Line:
    halves = round(2 * width * min(done, total) / total) if total else 0
    full = glyphs.full * (halves // 2) + glyphs.half * (halves % 2)
    return [(full, style), (glyphs.rest * (width - len(full)), "dim")]


# ---------------------------------------------------------------- progress, notes


def _progress(scene: Scene, width: int, glyphs: Glyphs) -> Line:
    remains = f"  {left(scene.ahead)}" if scene.ahead else ""
    share = scene.ahead.share if scene.ahead else scene.done / scene.total if scene.total else 0.0
    count = f"{percent_done(share)}  {scene.done}/{scene.total} points"
    text = f"  {count}  {duration(scene.elapsed_s)}"
    # The bar keeps its length when the times get longer.
    room = max(width - max(len(text + remains), len(count) + 30), 3)
    bar = _bar(round(1000 * share), 1000, room, "bold green", glyphs)
    return [*bar, (text.rjust(width - room - len(remains)), ""), (remains, "bold")]


def _notes(notes: Sequence[Note], width: int, glyphs: Glyphs) -> list[Line]:
    if not notes:
        return []
    shown = ((_clip(f"! {one.text}", width, glyphs), "red" if one.is_failure else "yellow") for one in notes)
    return [[], *([one] for one in shown)]


# ---------------------------------------------------------------- the running point


def _point(scene: Scene, width: int, room: int, glyphs: Glyphs) -> list[Line]:
    state = scene.running
    assert state is not None
    again = " (second try)" if state.retries else ""
    label = f"{scene.number}  {state.point.label}{again}"
    since = duration(scene.running_s)
    where = _clip(phase(state), width - len(label) - len(since) - 4, glyphs)
    gap = " " * (width - len(label) - len(where) - len(since) - 2)
    style = "red" if state.failure else STYLES.get(state.phase, "")
    title = [(label, "bold"), (f"  {where}", style), (gap + since, "dim")]
    return [[], title, *_bars(state, width, room - 2, glyphs)]


def _bars(state: PointState, width: int, room: int, glyphs: Glyphs) -> list[Line]:
    many = len(state.ranks) > MAX_RANKS
    gauges = node_gauges(state) if many else rank_gauges(state)
    if not many and len(gauges) > _most(gauges, width) * room:
        gauges = node_gauges(state)
    columns = min(-(-len(gauges) // max(min(RANK_LINES, room), 1)), _most(gauges, width))
    cell = (width + CELL_GAP) // columns - CELL_GAP
    shown = gauges
    if len(gauges) > columns * room:  # the slowest, in their order
        slowest = sorted(range(len(gauges)), key=lambda index: _advance(gauges[index]))
        shown = [gauges[index] for index in sorted(slowest[: columns * max(room - 1, 1)])]
    lines, hidden = -(-len(shown) // columns), len(gauges) - len(shown)
    painted = [
        [(" " * CELL_GAP, ""), *_cell(gauge, name, cell, glyphs)]
        for gauge, name in zip(shown, _names(shown, cell), strict=True)
    ]
    bars = [list(chain.from_iterable(painted[line::lines]))[1:] for line in range(lines)]
    return [*bars, [(f"{glyphs.more} and {hidden} more nodes, none behind these", "dim")]] if hidden else bars


def _most(gauges: Sequence[Gauge], width: int) -> int:
    needed = max(len(gauge.name) + 2 * len(str(gauge.total)) for gauge in gauges) + CELL_FIXED + CELL_GAP
    return max((width + CELL_GAP) // needed, 1)


def _names(gauges: Sequence[Gauge], width: int) -> list[str]:
    digits, host = max(len(gauge.name) for gauge in gauges), max(len(gauge.host) for gauge in gauges)
    if not host or width < CELL_HOST + host:
        return [f"{gauge.name:>{digits}}" for gauge in gauges]
    return [f"{gauge.name:>{digits}} {gauge.host:<{host}}" for gauge in gauges]


def _cell(gauge: Gauge, name: str, width: int, glyphs: Glyphs) -> Line:
    style = STYLES[gauge.state]
    is_running = gauge.state in ("warming", "measuring", "done")
    count = f"{gauge.done}/{gauge.total}".rjust(2 * len(str(gauge.total)) + 1)
    if width >= CELL_WIDE:
        value, state = f"{gauge.value + gauge.unit:>15}", f"  {gauge.state:<{STATE}}"
    else:
        short = gauge.value + "".join(gauge.unit.rpartition("/")[1:])
        value, state = f"{short if is_running else gauge.state:>{VALUE}}", ""
    bar = max(width - len(name) - len(count) - len(value) - len(state) - 3, 1)
    return [
        (f"{name} ", ""),
        *_bar(gauge.done, gauge.total, bar, style, glyphs),
        (f" {count} ", "" if is_running else "dim"),
        (value, "" if is_running else style),
        (state, style),
    ]


# ---------------------------------------------------------------- the table


def _table(rows: Sequence[Row], width: int, room: int, glyphs: Glyphs) -> list[Line]:
    if not rows or room < 3:
        return []
    hidden = max(len(rows) - (room - 2), 0)
    work = rows[0].workload
    columns = [
        ("strategy", "", [_clip(name_of(row), NAME_MAX, glyphs) for row in rows]),
        ("N", ">", [str(row.world_size) for row in rows]),
        (f"{work.unit}/s", "", _estimates([row.samples_per_s for row in rows], work.units_per_sample, "", glyphs)),
        ("efficiency", "", _estimates([claimed(row) for row in rows], 100, " %", glyphs)),
    ]
    widths = [max(len(heading), *map(len, texts)) for heading, _, texts in columns]
    heading = "  ".join(f"{head:{align}{n}}" for (head, align, _), n in zip(columns, widths, strict=True))
    above = f"  ({hidden} above)" if hidden else ""
    lines: list[Line] = [[], [(_clip(heading + above, width, glyphs), "dim")]]
    for index in range(hidden, len(rows)):
        cells = [f"{texts[index]:{align}{n}}" for (_, align, texts), n in zip(columns, widths, strict=True)]
        lines.append(_row(rows[index], "  ".join(cells), width, glyphs))
    return lines


def _row(row: Row, text: str, width: int, glyphs: Glyphs) -> Line:
    flags = " ".join(row.flags) + (f" {row.failed.cause}" if row.failed else "")
    line: Line = [(text, "")]
    if width - len(text) >= 60:
        line += [("  ", ""), *_share(claimed(row), glyphs)]
    used = sum(len(part) for part, _ in line)
    return [*line, (_clip(f"  {flags}", width - used, glyphs), "red" if row.failed else "yellow")]


def _share(efficiency: Estimate | None, glyphs: Glyphs) -> Line:
    if efficiency is None:
        return [(" " * SHARE, "")]
    mean = efficiency.mean
    style = "green" if mean >= 0.9 else "yellow" if mean >= 0.7 else "red"
    return _bar(round(1000 * mean), 1000, SHARE, style, glyphs)


def _estimates(estimates: Sequence[Estimate | None], scale: float, unit: str, glyphs: Glyphs) -> list[str]:
    smallest = min((estimate.mean * scale for estimate in estimates if estimate), default=0.0)
    digits = 1 if unit else decimals(smallest)
    means, ends = [], []
    for of in (estimate and estimate.times(scale) for estimate in estimates):
        means.append(f"{of.mean:.{digits}f}{unit}" if of else glyphs.none)
        said = f" {plus_minus(of.mean, of.low, of.high, digits)}".rstrip() if of else ""
        ends.append(said.replace("±", glyphs.plus_minus))
    wide, tail = max(map(len, means)), max(map(len, ends))
    return [f"{mean:>{wide}}{end:<{tail}}" for mean, end in zip(means, ends, strict=True)]


# ---------------------------------------------------------------- live

REFRESH_S = 1.0


def make(kind: ViewKind, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> View:
    """Return the view of this kind on `stream`, which is stdout if the kind is `auto`. The view is plain if the
    terminal cannot move its cursor (TERM=dumb)."""
    if kind == "none":
        return View()
    if kind == "plain" or terminal.is_dumb():
        return PlainView(stream, clock)
    shown_on = terminal.find()
    return PlainView(stream, clock) if kind == "auto" and shown_on is None else LiveView(stream, clock, shown_on)


class LiveView(View):
    """A view that draws the newest state over the last one, at most once a second. `shown_on` is the file
    descriptor of the terminal; None if unknown."""

    def __init__(
        self, stream: TextIO, clock: Callable[[], float] = time.monotonic, shown_on: int | None = None
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self._clock, self._shown_on, self._stream = clock, shown_on, Stream(stream)
        self._console = Console(
            file=cast(TextIO, self._stream), force_terminal=True, force_interactive=True, legacy_windows=False,
            markup=False,
        )  # fmt: skip
        self._glyphs = Glyphs() if self._console.encoding.startswith("utf") else ASCII
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._opened_s = self._due_s = clock()
        self._scene = Scene()

    def opened(self, header: Header, total: int) -> None:
        self._opened_s = self._clock()
        self._live.start()
        ahead = Ahead(0.0, header.estimate_s or None)
        self._look(title=one_line(headline(header)), total=total, ahead=ahead)

    def began(self, state: PointState, number: int) -> None:
        # A resumed run starts with points that are done.
        self._look(number=number, done=number - 1, running=state)

    def progress(self, state: PointState) -> None:
        self._look(running=state)

    def advanced(self, ahead: Ahead) -> None:
        self._scene = self._scene._replace(ahead=ahead)

    def finished(self, record: PointRecord, rows: Sequence[Row], number: int, total: int) -> None:
        label = record.point.label
        if isinstance(record.outcome, Failed):
            self._noted(Note(one_line(f"{label}: {failure(record.outcome)}"), is_failure=True))
        self._noted(*(Note(one_line(f"{label}: {warning.text}")) for warning in record.warnings))
        self._look(done=number, total=total, rows=rows, running=None)

    def extended(self, total: int) -> None:
        self._look(total=total)

    def note(self, text: str) -> None:
        self._noted(Note(one_line(text)))
        self._look()

    def closed(self, stream: TextIO | None = None) -> None:
        """Leave progress and notes on the screen; the whole table is printed after them."""
        if stream is not None:
            self._stream.redirect(stream)
        self._scene = self._scene._replace(running=None, rows=(), ahead=None)
        self._live.update(self._draw())
        self._live.stop()

    @property
    def columns(self) -> int:
        """The width of the terminal."""
        return terminal.size(self._shown_on).columns

    def _noted(self, *notes: Note) -> None:
        self._scene = self._scene._replace(notes=[*self._scene.notes, *notes][-NOTES:])

    def _look(self, **changed: Any) -> None:
        self._scene = self._scene._replace(**changed)
        now_s = self._clock()
        if now_s >= self._due_s and self._live.is_started:
            self._due_s = now_s + REFRESH_S
            self._live.update(self._draw(), refresh=True)

    def _draw(self) -> Text:
        from rich.text import Text

        columns, rows = terminal.size(self._shown_on)
        self._console.size = (columns, rows)
        # One line and one column stay free, or the terminal would scroll or wrap. The frame ends its last line:
        # mpirun (Open MPI 5) forwards whole lines only.
        now_s, running = self._clock(), self._scene.running
        scene = self._scene._replace(
            elapsed_s=now_s - self._opened_s, running_s=now_s - running.started_s if running else 0.0
        )
        lines = frame(scene, width=columns - 1, height=rows - 1, glyphs=self._glyphs)
        text = Text(no_wrap=True, overflow="crop", end="")
        for line in lines:
            for words, style in line:
                text.append(printable(words), style or None)
            text.append("\n")
        text.append("\n")
        return text
