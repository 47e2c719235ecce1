"""PyTorch Lightning: its progress bar, and the rates of ThroughputMonitor.

A bar counts steps: samples only where `--batch-size` says those of a device. ThroughputMonitor's
`device/samples_per_sec` x devices = `samples_per_sec`; it puts the stage before each, as in `train|`.

The seconds of a bar go on while its epoch is validated: before 2.0 it counts those batches as well, since then it
is printed again with the same count. So the first rate of a count is taken, and none after a validation's bar.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median

from scaling.tools.importers.found import NUMBER, Found, Given, Refused, Skipped, compiled, number, row, world_size
from scaling.tools.importers.gathered import Rates
from scaling.tools.importers.lines import LogLine

MARKS = ("it/s", "s/it", "samples_per_sec")
SURE = re.compile(
    r"(?:Epoch \d+|Training[^:|]*): +\d+%\|.*\| *\d+/\d+ \[[^\]]*(?:it/s|s/it)"
    r"|(?<!train_)\bdevice[^\w\s]samples_per_sec['\"]?\s*[:=]"
)
_BAR = re.compile(
    r"(?:Epoch (\d{1,9})|Training[^:|]*): +\d+%\|.*?\| *(\d{1,12})/(\d{1,12}) "
    r"\[[^,\]]*, *(\d+(?:\.\d+)?)(it/s|s/it)"
)
_TRAINS = re.compile(r"Epoch (\d{1,9})|Training")
_VALIDATES = re.compile(r"(?:^|\s)Validat(?:ing|ion)(?: DataLoader \d+)?: ")
# The stage and `device` stand before the key, each with a separator that users choose.
_BEFORE = r"[^\s'\"{}()\[\],]"
_MONITOR = compiled(rf"(?<!{_BEFORE})({_BEFORE}{{0,200}}?)samples_per_sec['\"]?\s*[:=]\s*['\"]?", NUMBER)
_SIZE = re.compile(r"Starting with (\d+) processes|MEMBER: \d+/(\d+)(?![\d\u2026])")


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row of the whole log. Raises Refused."""
    skipped, sizes = Skipped(), set[int]()
    bars, rates, place = _Bars(), {True: Rates(), False: Rates()}, 0
    for line in lines:
        text = line.text
        if "samples_per_sec" in text:
            found = list(_MONITOR.finditer(text))
            place += 1
            for one in found:
                stage, device = _prefix(one[1])
                if stage in ("", "train"):
                    rates[device].add(number(one[2]), place)
            if not found:
                skipped.add(line)
        elif "it/s" in text or "s/it" in text:
            bars.read(line, skipped)
        elif (size := _SIZE.search(text)) is not None:
            sizes.add(int(size[1] or size[2]))
    if rates[True] or rates[False]:
        return _monitored(rates, sizes, given, skipped)
    return _counted(bars.rates, sizes, given, skipped)


def _prefix(text: str) -> tuple[str, bool]:
    """Of a monitor's key: the stage, and whether it is of one device."""
    words = re.findall(r"\w+", text)
    device = words[-1:] == ["device"]
    return "|".join(words[:-1] if device else words), device


class _Bars:
    """The largest count of each epoch's bar before its validation, with the first rate of that count."""

    def __init__(self) -> None:
        self.rates: dict[int, float] = {}
        self._done: dict[int, int] = {}
        self._validated: set[int] = set()
        self._epoch: int | None = None

    def read(self, line: LogLine, skipped: Skipped) -> None:
        """A bar. Raises Refused of an epoch whose first rate holds a validation's seconds."""
        if (trains := _TRAINS.search(line.text)) is not None:
            self._epoch = int(trains[1] or 0)
            bar = _BAR.search(line.text)
            if bar is not None:
                self._add(int(bar[1] or 0), int(bar[2]), number(bar[4]), bar[5] == "it/s")
            elif "?it/s" not in line.text and "?s/it" not in line.text:
                skipped.add(line)
        elif self._epoch is not None and _VALIDATES.search(line.text):
            self._validated.add(self._epoch)

    def _add(self, epoch: int, done: int, value: float, per_s: bool) -> None:
        if not done or not value:
            return
        if epoch in self._validated:
            if epoch not in self.rates:
                raise Refused(f"says no rate of epoch {epoch} before its validation, whose seconds are in the bar")
        elif done > self._done.get(epoch, 0):
            self._done[epoch], self.rates[epoch] = done, value if per_s else 1 / value


def _counted(bars: dict[int, float], sizes: set[int], given: Given, skipped: Skipped) -> Found:
    if not bars:
        raise Refused("has no whole bar of an epoch with its rate")
    epochs = sorted(bars)
    later = epochs[1:] or epochs
    steps = median(bars[epoch] for epoch in later)
    devices = world_size(sizes, given)
    left_out = "the first epoch left out" if len(epochs) > 1 else "its start included"
    notes = [f"the last rate of each epoch's bar before a validation, {left_out}"]
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
