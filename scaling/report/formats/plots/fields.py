"""Draw heat maps, strips of readings and lanes of rounds."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from scaling.report.figures.parts import Heat, Lanes, Strip, Strips
from scaling.report.formats.plots.sheet import KINDS, RED, SMALL, Sheet, label_width, upright_labels

# Highest ratio to the median of each colour: light to dark, distinguishable in grey too (after ColorBrewer's OrRd
# by Cynthia Brewer, with a blue for faster ones).
STEPS = (
    (0.97, "#9ecae1"), (1.01, "#fff3dc"), (1.03, "#fdd9a0"), (1.06, "#fdbb84"), (1.12, "#fc8d59"),
    (1.25, "#e34a33"),
)  # fmt: skip
SLOWEST = "#7f0000"
BOX: list[Any] = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
LINE_IN, STRIP_IN, LANE_IN = 0.17, 1.15, 0.38


def _legend(sheet: Sheet, entries: list[tuple[str, str]]) -> None:
    handles = [Patch(facecolor=hue, label=text) for text, hue in entries]
    sheet.on.legend(
        handles=handles, loc="lower center", ncols=min(len(handles), 4), frameon=False, fontsize=SMALL,
        handlelength=1.0, columnspacing=1.1, borderaxespad=0.15,
        bbox_to_anchor=(0.5, (0.06 + sheet.bottom_in) / sheet.height_in),
    )  # fmt: skip


# ---------------------------------------------------------------- heat maps


def heat_height(body: Heat) -> float:
    return 1.5 + LINE_IN * max(len(body.lines), 4)


def draw_heat(sheet: Sheet, body: Heat) -> None:
    """Draw neighbours of one colour as one rectangle, and a colour as one path."""
    axes = sheet.axes(left=label_width(body.lines), bottom=1.0, top=0.28)
    upright_labels(axes, body.lines)
    if len(body.lines) > 20:
        axes.tick_params(axis="y", labelsize=SMALL)
    for hue, path in _paths(body).items():
        axes.add_patch(PathPatch(path, facecolor=hue, edgecolor="none", linewidth=0))
    columns = max((len(line) for line in body.cells), default=1)
    axes.set_xlim(0, columns)
    for at in body.breaks:
        axes.axvline(at, color=sheet.ink, linewidth=0.9)
    axes.set_xlabel("windows, a line between rounds")
    texts = ["faster", *(f"to {STEPS[at][0]:.2f} x" for at in range(1, len(STEPS))), "slower"]
    _legend(sheet, list(zip(texts, [*(hue for _, hue in STEPS), SLOWEST], strict=True)))


def _hue(ratio: float) -> str:
    return next((hue for most, hue in STEPS if ratio <= most), SLOWEST)


def _paths(body: Heat) -> dict[str, Path]:
    corners: dict[str, list[tuple[float, float]]] = defaultdict(list)
    codes: dict[str, list[Any]] = defaultdict(list)
    for at, line in enumerate(body.cells):
        start = 0
        while start < len(line):
            value, end = line[start], start + 1
            if value is not None:
                hue = _hue(value)
                while end < len(line) and (beside := line[end]) is not None and _hue(beside) == hue:
                    end += 1
                low, high = at - 0.5, at + 0.5
                corners[hue] += [(start, low), (end, low), (end, high), (start, high), (start, low)]
                codes[hue] += BOX
            start = end
    return {hue: Path(of, codes[hue]) for hue, of in corners.items()}


# ---------------------------------------------------------------- strips and lanes


def strips_height(body: Strips) -> float:
    return 0.75 + STRIP_IN * len(body.strips)


def draw_strips(sheet: Sheet, body: Strips) -> None:
    """Draw the mean as a line, and the lowest to the highest as a band."""
    for at, strip in enumerate(body.strips):
        below = len(body.strips) - 1 - at
        axes = sheet.axes(left=0.75, bottom=0.5 + STRIP_IN * below, top=0.25 + STRIP_IN * at, right=0.2)
        box = axes.get_position()
        axes.set_position((box.x0, box.y0, box.width, box.height * 0.76))
        _strip(axes, strip, is_time=body.across != "rank")
        if below:
            axes.tick_params(axis="x", labelbottom=False)
        else:
            axes.set_xlabel(body.across)


def _strip(axes: Axes, strip: Strip, *, is_time: bool) -> None:
    """Strips over ranks have no line."""
    at = [one.at_s for one in strip.readings]
    if is_time:
        lows, highs = ([one[end] for one in strip.readings] for end in (1, 3))
        axes.fill_between(at, lows, highs, color="#0072b2", alpha=0.25, linewidth=0)
    few = len(at) < 40
    axes.plot(
        at, [one.mean for one in strip.readings], color="#0072b2", linewidth=1.2, markersize=3.5,
        linestyle="-" if is_time else "", marker="o" if few or not is_time else "",
    )  # fmt: skip
    if few:
        for one in strip.readings:
            axes.plot((one.at_s, one.at_s), (one.low, one.high), color="#0072b2", linewidth=1)
    axes.set_title(strip.title, fontsize=SMALL, loc="left", pad=3)
    top, bottom = max(one.high for one in strip.readings), min(one.low for one in strip.readings)
    room = max(0.12 * (top - bottom), 0.02 * top)
    low, high = (0.0, top * 1.12) if strip.from_zero else (max(0.0, bottom - room), top + room)
    axes.set_ylim(low, high if top > 0 else 1)
    axes.locator_params(axis="y", nbins=4)
    axes.locator_params(axis="x", integer=True)
    axes.grid(visible=True)


def lanes_height(body: Lanes) -> float:
    """Return the height in inches, with the legend."""
    return 1.5 + LANE_IN * max(len(body.lanes), 3)


def draw_lanes(sheet: Sheet, body: Lanes) -> None:
    labels = [lane.label for lane in body.lanes]
    axes = sheet.axes(left=label_width(labels), bottom=1.0, top=0.28)
    upright_labels(axes, labels)
    track = 0.84 / max(len(body.kinds), 1)
    for at, lane in enumerate(body.lanes):
        for kind, stretches in lane.stretches.items():
            low = at - 0.42 + track * body.kinds.index(kind)
            spans = [(one.start_s, max(one.end_s - one.start_s, 0.0)) for one in stretches]
            axes.add_patch(PathPatch(_boxes(spans, low, low + track), facecolor=KINDS.get(kind, RED), linewidth=0))
        axes.plot(lane.failures, [at] * len(lane.failures), marker="x", color=RED, linestyle="", markersize=7,
                  markeredgewidth=2)  # fmt: skip
    ends = [one.end_s for lane in body.lanes for of in lane.stretches.values() for one in of]
    ends += [at for lane in body.lanes for at in lane.failures]
    axes.set_xlim(0, max(ends, default=1.0) * 1.01 or 1.0)
    axes.set_xlabel("seconds since the first point started")
    _legend(sheet, [(kind, KINDS.get(kind, RED)) for kind in body.kinds])


def _boxes(spans: list[tuple[float, float]], low: float, high: float) -> Path:
    corners: list[tuple[float, float]] = []
    for start, width in spans:
        end = start + width
        corners += [(start, low), (end, low), (end, high), (start, high), (start, low)]
    return Path(corners or [(0.0, low)], BOX * len(spans) or BOX[:1])
