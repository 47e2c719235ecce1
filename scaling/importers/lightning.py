"""PyTorch Lightning: its progress bar, and the rates of ThroughputMonitor.

A bar counts steps: samples only where `--batch-size` says those of a device. ThroughputMonitor's
`device/samples_per_sec` x devices = `samples_per_sec`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median

from scaling.importers.found import NUMBER, Found, Given, Refused, Skipped, compiled, number, row, world_size
from scaling.importers.lines import LogLine

MARKS = ("it/s", "s/it", "samples_per_sec")
SURE = re.compile(
    r"Epoch \d+: +\d+%\|.*\| *\d+/\d+ \[[^\]]*(?:it/s|s/it)|(?<!train_)\bdevice/samples_per_sec['\"]?\s*[:=]"
)
_BAR = re.compile(r"Epoch (\d+): +\d+%\|.*?\| *(\d+)/(\d+) \[[^,\]]*, *(\d+(?:\.\d+)?)(it/s|s/it)")
_MONITOR = compiled(r"(device/)?samples_per_sec['\"]?\s*[:=]\s*['\"]?", NUMBER)
_SIZE = re.compile(r"Starting with (\d+) processes|MEMBER: \d+/(\d+)(?![\d\u2026])")


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row of the whole log. Raises Refused."""
    skipped, sizes = Skipped(), list[int]()
    bars: dict[int, tuple[int, list[float]]] = {}
    rates: dict[bool, list[float]] = {True: [], False: []}
    for line in lines:
        text = line.text
        if "samples_per_sec" in text:
            found = list(_MONITOR.finditer(text))
            for one in found:
                rates[bool(one[1])].append(number(one[2]))
            if not found:
                skipped.add(line)
        elif "Epoch " in text and ("it/s" in text or "s/it" in text):
            _bar(line, bars, skipped)
        elif (size := _SIZE.search(text)) is not None:
            sizes.append(int(size[1] or size[2]))
    if rates[True] or rates[False]:
        return _monitored(rates, sizes, given, skipped)
    return _counted(bars, sizes, given, skipped)


def _bar(line: LogLine, bars: dict[int, tuple[int, list[float]]], skipped: Skipped) -> None:
    bar = _BAR.search(line.text)
    if bar is None:
        if "?it/s" not in line.text and "?s/it" not in line.text:
            skipped.add(line)
        return
    epoch, done = int(bar[1]), int(bar[2])
    value = number(bar[4])
    if not done or not value:
        return
    rate = value if bar[5] == "it/s" else 1 / value
    before = bars.get(epoch, (-1, []))
    if done > before[0]:
        bars[epoch] = done, [rate]
    elif done == before[0]:
        before[1].append(rate)


def _counted(bars: dict[int, tuple[int, list[float]]], sizes: list[int], given: Given, skipped: Skipped) -> Found:
    if not bars:
        raise Refused("has no whole bar of an epoch with its rate")
    epochs = sorted(bars)
    later = epochs[1:] or epochs
    steps = median(median(bars[epoch][1]) for epoch in later)
    devices = world_size(sizes, given)
    left_out = "the first epoch left out" if len(epochs) > 1 else "its start included"
    notes = [f"the last rate of each epoch's bar, {left_out}"]
    if not given.batch_size:
        notes.append("steps/s: --batch-size N makes samples of them")
    rate = steps * given.batch_size * devices if given.batch_size else steps
    one = row(
        given,
        tool="lightning",
        unit="samples" if given.batch_size else "steps",
        rate=rate,
        devices=devices,
        notes=notes,
    )
    return Found(rows=(one,), notes=skipped.notes())


def _monitored(rates: dict[bool, list[float]], sizes: list[int], given: Given, skipped: Skipped) -> Found:
    both = [of[1:] or of for of in (rates[True], rates[False])]
    if both[0] and both[1]:
        sizes = [*sizes, round(median(both[1]) / median(both[0]))]
    if max(len(rates[True]), len(rates[False])) == 1:
        raise Refused("has its first window alone, which holds the start")
    devices = world_size(sizes, given)
    rate = median(both[1]) if both[1] else devices * median(both[0])
    notes = ("the first window is left out",)
    one = row(given, tool="lightning", unit="samples", rate=rate, devices=devices, notes=notes)
    return Found(rows=(one,), notes=skipped.notes())
