"""PyTorch Lightning: its progress bar, and the rates of ThroughputMonitor.

A bar counts steps: samples only where `--batch-size` says those of a device. ThroughputMonitor's
`device/samples_per_sec` x devices = `samples_per_sec`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median

from scaling.importers.found import NUMBER, Found, Given, Refused, Skipped, compiled, number, row, world_size
from scaling.importers.gathered import Rates
from scaling.importers.lines import LogLine

MARKS = ("it/s", "s/it", "samples_per_sec")
SURE = re.compile(
    r"(?:Epoch \d+|Training[^:|]*): +\d+%\|.*\| *\d+/\d+ \[[^\]]*(?:it/s|s/it)"
    r"|(?<!train_)\bdevice/samples_per_sec['\"]?\s*[:=]"
)
_BAR = re.compile(
    r"(?:Epoch (\d+)|Training[^:|]*): +\d+%\|.*?\| *(\d+)/(\d+) \[[^,\]]*, *(\d+(?:\.\d+)?)(it/s|s/it)"
)
_TRAINS = re.compile(r"Epoch \d|Training")
_MONITOR = compiled(r"(device/)?samples_per_sec['\"]?\s*[:=]\s*['\"]?", NUMBER)
_SIZE = re.compile(r"Starting with (\d+) processes|MEMBER: \d+/(\d+)(?![\d\u2026])")


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row of the whole log. Raises Refused."""
    skipped, sizes = Skipped(), set[int]()
    bars: dict[int, tuple[int, list[float]]] = {}
    rates, place = {True: Rates(), False: Rates()}, 0
    for line in lines:
        text = line.text
        if "samples_per_sec" in text:
            found = list(_MONITOR.finditer(text))
            place += 1
            for one in found:
                rates[bool(one[1])].add(number(one[2]), place)
            if not found:
                skipped.add(line)
        elif ("it/s" in text or "s/it" in text) and _TRAINS.search(text):
            _bar(line, bars, skipped)
        elif (size := _SIZE.search(text)) is not None:
            sizes.add(int(size[1] or size[2]))
    if rates[True] or rates[False]:
        return _monitored(rates, sizes, given, skipped)
    return _counted(bars, sizes, given, skipped)


def _bar(line: LogLine, bars: dict[int, tuple[int, list[float]]], skipped: Skipped) -> None:
    bar = _BAR.search(line.text)
    if bar is None:
        if "?it/s" not in line.text and "?s/it" not in line.text:
            skipped.add(line)
        return
    epoch, done = int(bar[1] or 0), int(bar[2])
    value = number(bar[4])
    if not done or not value:
        return
    rate = value if bar[5] == "it/s" else 1 / value
    before = bars.get(epoch, (-1, []))
    if done > before[0]:
        bars[epoch] = done, [rate]
    elif done == before[0] and rate not in before[1]:
        before[1].append(rate)


def _counted(bars: dict[int, tuple[int, list[float]]], sizes: set[int], given: Given, skipped: Skipped) -> Found:
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


def _monitored(rates: dict[bool, Rates], sizes: set[int], given: Given, skipped: Skipped) -> Found:
    both = {key: of.steady("window") for key, of in rates.items() if of}
    said = {*sizes, *([round(both[False] / both[True])] if len(both) == 2 else [])}
    devices = world_size(said, given)
    rate = both[False] if False in both else devices * both[True]
    notes = ("the first window is left out",)
    one = row(given, tool="lightning", unit="samples", rate=rate, devices=devices, notes=notes)
    return Found(rows=(one,), notes=skipped.notes())
