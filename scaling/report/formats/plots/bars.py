"""Draws bars and dots beside names of rows: loss by cause, every round, bytes by card."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from scaling.analysis.audit import WRONG
from scaling.report.figures.parts import Bar, Bars, Cards, Carried, Spreads
from scaling.report.formats.plots.sheet import Sheet, grid_along_x, label_width, upright_labels
from scaling.report.formats.plots.style import CAUSES, EFFICIENT, GREY, RED

LINE_IN = 0.235
LEGEND_IN = 0.42


def lines_height(count: int) -> float:
    """Inches of a figure with so many lines of names."""
    return 1.05 + LINE_IN * max(count, 3)


def bars_height(body: Bars) -> float:
    """With the legend."""
    return lines_height(len(body.bars)) + LEGEND_IN


def draw_bars(sheet: Sheet, body: Bars) -> None:
    """Parts to the right of zero one after the other, negative ones to the left."""
    labels = [bar.label for bar in body.bars]
    axes = sheet.axes(left=label_width(labels), bottom=0.5 + LEGEND_IN, top=0.28, right=0.25)
    upright_labels(axes, labels)
    hues = [EFFICIENT, *(CAUSES.get(name, GREY) for name in body.names[1:])]
    for at, bar in enumerate(body.bars):
        _bar(axes, at, bar, hues)
    axes.set_xlabel("% of a step")
    lows = [sum(part for part in bar.parts if part is not None and part < 0) for bar in body.bars]
    highs = [sum(part for part in bar.parts if part is not None and part > 0) for bar in body.bars]
    axes.set_xlim(min(0.0, *lows, 0.0) * 1.08, max(100.0, *highs, 100.0) * 1.01)
    axes.axvline(100, color=sheet.ink, alpha=0.5, linewidth=0.8, linestyle=(0, (5, 3)))
    axes.axvline(0, color=sheet.ink, linewidth=0.6)
    grid_along_x(axes)
    handles = [Patch(facecolor=hue, label=name) for name, hue in zip(body.names, hues, strict=True)]
    sheet.on.legend(
        handles=handles, loc="lower center", ncols=min(len(handles), 6), frameon=False, fontsize=7.5,
        handlelength=1.0, columnspacing=1.2, borderaxespad=0.15,
        bbox_to_anchor=(0.5, (0.06 + sheet.bottom_in) / sheet.height_in),
    )  # fmt: skip


def _bar(axes: Axes, at: int, bar: Bar, hues: list[str]) -> None:
    right, left = 0.0, 0.0
    for part, hue in zip(bar.parts, hues, strict=False):
        if not part:
            continue
        start = right if part > 0 else left
        axes.barh(at, part, left=start, height=0.72, color=hue, edgecolor=_edge(bar), linewidth=0.9)
        if hue == EFFICIENT and part > 12:
            axes.text(1, at, bar.says or f"{part:.1f} %", color="#ffffff", fontsize=7.5, va="center")
        right, left = (right + part, left) if part > 0 else (right, left + part)
    if bar.says and not bar.parts:
        axes.text(1, at, bar.says, color=RED if bar.mark == "FAILED" else GREY, fontsize=8, va="center")
    elif bar.mark in WRONG:
        axes.text(min(right, 100) - 1, at, bar.mark, color=RED, fontsize=7, va="center", ha="right", weight="bold",
                  bbox={"facecolor": "#ffffff", "edgecolor": RED, "pad": 1.2, "linewidth": 0.8})  # fmt: skip


def _edge(bar: Bar) -> str:
    return RED if bar.mark in WRONG else "none"


def draw_spreads(sheet: Sheet, body: Spreads) -> None:
    """A dot per round."""
    labels = [one.label for one in body.spreads]
    axes = sheet.axes(left=label_width(labels), bottom=0.5, top=0.28)
    upright_labels(axes, labels)
    for at, one in enumerate(body.spreads):
        wrong = one.mark in WRONG
        hollow = one.mark in ("OVERSUBSCRIBED", "EMULATED", "PREDICTED")
        axes.plot(
            one.values, [at] * len(one.values), marker="o", markersize=4.5, linestyle="", alpha=0.85,
            markerfacecolor="none" if hollow else "#0072b2", markeredgecolor=RED if wrong else "#0072b2",
        )  # fmt: skip
        if len(one.values) > 1:
            axes.plot((min(one.values), max(one.values)), (at, at), color="#0072b2", linewidth=0.8, alpha=0.6)
    most = max((abs(value) for one in body.spreads for value in one.values), default=0.0)
    axes.set_xlim(-max(most, 0.5) * 1.1, max(most, 0.5) * 1.1)
    axes.axvline(0, color=sheet.ink, alpha=0.6, linewidth=0.8)
    axes.set_xlabel("% off the row's mean")
    grid_along_x(axes)


def draw_cards(sheet: Sheet, body: Cards) -> None:
    """A bar per card, a tick where it must end."""
    labels = [f"{one.label}  {one.card}" for one in body.carried]
    axes = sheet.axes(left=label_width(labels), bottom=0.5, top=0.28)
    upright_labels(axes, labels)
    for at, one in enumerate(body.carried):
        _carried(axes, at, one, sheet)
    highest = max((max(one.sent, one.most or 0.0) for one in body.carried), default=1.0)
    axes.set_xlim(0, highest * 1.06 or 1.0)
    axes.set_xlabel(f"{body.unit} sent, all rounds; tick: what must be sent")
    grid_along_x(axes)


def _carried(axes: Axes, at: int, one: Carried, sheet: Sheet) -> None:
    axes.barh(at, one.sent, height=0.6, color="#009e73" if one.wanted else RED)
    if one.least is not None and one.most is not None:
        for end in {one.least, one.most}:
            axes.plot((end, end), (at - 0.42, at + 0.42), color=sheet.ink, linewidth=1.6)
    if not one.wanted:
        axes.text(one.sent, at, " not asked for ", color="#ffffff", fontsize=7.5, va="center", ha="right")
