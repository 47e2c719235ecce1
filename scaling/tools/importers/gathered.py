"""What is kept of a log while its lines go by: a few bytes a line, however long it is."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from statistics import median

from msgspec.structs import replace

from scaling.records.imported import ImportedRow
from scaling.tools.importers.found import Refused

# An epoch and a step of it in one number of 63 bits.
_SHIFT, _MOST = 1 << 40, 1 << 22


class Rates:
    """Rates and the step of each, in the order of the log. Those that are not above zero are left out."""

    def __init__(self) -> None:
        self._steps = array("q")
        self._rates = array("d")

    def __bool__(self) -> bool:
        return bool(self._rates)

    def add(self, rate: float, *step: int) -> None:
        """One more; a step may be an epoch and a number in it."""
        if rate > 0:
            first, second = (0, 0, *step)[-2:]
            self._steps.append(min(first, _MOST) * _SHIFT + min(second, _SHIFT - 1))
            self._rates.append(rate)

    def later(self) -> array[float]:
        """The rates of all steps but the first."""
        first = min(self._steps, default=0)
        return array("d", (rate for step, rate in zip(self._steps, self._rates, strict=True) if step != first))

    def steady(self, what: str) -> float:
        """The median of all steps but the first. Raises Refused where there is no other."""
        later = self.later()
        if not later:
            raise Refused(f"has its first {what} alone, which holds the start")
        return median(later)

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest, of some."""
        return min(self._rates), max(self._rates)

    def middle(self) -> float:
        """The median of all: several that say the same of one launch are one. Raises Refused of nothing."""
        if not self._rates:
            raise Refused("has no whole line with a rate")
        return median(self._rates)

    @property
    def steps(self) -> int:
        """How many differ."""
        return len(set(self._steps))


class Rows:
    """A row for each cell: what one log says of it several times is one, the middle of them."""

    def __init__(self) -> None:
        self._rows: dict[tuple[object, ...], tuple[ImportedRow, array[float]]] = {}

    def add(self, one: ImportedRow) -> None:
        """One more launch."""
        key = (
            one.world_size, one.model.casefold(), one.batch_size, one.precision, one.unit, one.synchronous,
            one.failed,
        )  # fmt: skip
        self._rows.setdefault(key, (one, array("d")))[1].append(one.rate or 0.0)

    def __iter__(self) -> Iterator[ImportedRow]:
        for one, rates in self._rows.values():
            yield one if one.rate is None else replace(one, rate=sorted(rates)[(len(rates) - 1) // 2])
