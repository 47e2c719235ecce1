"""Which exchange and which framework is the fastest at each world size, and what could be told at all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from scaling.analysis.rows import Resolution, Row
from scaling.report import cells, labels, quantities
from scaling.report.labels import Context
from scaling.report.parts import Detail, Line, Notes, Phrase, Section, Value

TITLE = "Comparison at each world size"
FRAMEWORKS = "Frameworks at each world size, by their fastest exchange"
APART = "asynchronous: ranked among themselves"


class Comparisons:
    """The tables in which rows of one report are compared, for each group of rows that may be."""

    def __init__(
        self, rows: Sequence[Row], resolutions: Iterable[Resolution], context: Context, planned: int, notes: Notes
    ) -> None:
        self._resolutions = list(resolutions)
        self._context = context
        self._planned = planned
        self._notes = notes
        self._groups: dict[int, dict[int, list[Row]]] = {}
        for row in rows:
            self._groups.setdefault(row.group, {}).setdefault(row.world_size, []).append(row)

    def sections(self) -> tuple[Section, ...]:
        """Exchanges, then frameworks; world sizes at which a row has no rival are left out."""
        with_rivals = (
            [rivals for _, rivals in sorted(sizes.items()) if len(rivals) > 1] for sizes in self._groups.values()
        )
        return tuple(section for by_size in with_rivals if by_size for section in self._of_group(by_size))

    def _of_group(self, by_size: Sequence[Sequence[Row]]) -> Iterator[Section]:
        first = by_size[0][0]
        rate = cells.rate_column(first.workload.unit, shows_interval=False)
        lost = cells.breakdown_columns(cells.told(row for rivals in by_size for row in rivals))
        several = len({row.framework for rivals in by_size for row in rivals}) > 1
        against = cells.WITHIN_FRAMEWORK if several else cells.AGAINST_BEST
        details = self._details(first.group)
        alone = _are_alone(by_size)
        if not alone:
            yield Section(
                title=", ".join((TITLE, *labels.varying(first, self._context))),
                columns=(cells.NAME, rate, against, cells.EFFICIENCY, *lost),
                lines=tuple(line for rivals in by_size for line in self._exchanges(rivals)),
                details=details,
                group=first.group,
            )
        if lines := tuple(line for rivals in by_size for line in self._frameworks(rivals)):
            yield Section(
                title=", ".join((FRAMEWORKS, *labels.varying(first, self._context))),
                columns=(cells.NAME, rate, cells.AGAINST_FASTEST_FRAMEWORK),
                lines=lines,
                details=details if alone else (),
                group=first.group,
            )

    # ------------------------------------------------------------ lines

    def _exchanges(self, rivals: Sequence[Row]) -> Iterator[Line]:
        """Synchronous rows, then the asynchronous ones; the fastest framework first, and in it the fastest row.
        Who is not ranked stands behind."""
        waiting = [row for row in rivals if row.synchronous]
        for synchronous in (True, False):
            found = sorted((row for row in rivals if row.synchronous == synchronous), key=_place, reverse=True)
            place = {name: index for index, name in enumerate(dict.fromkeys(row.framework for row in found))}
            found.sort(key=lambda row: place[row.framework])
            for row, above in zip(found, _above(found), strict=True):
                marks = self._notes.marks(cells.notes_of(row, self._planned))
                line = cells.line(row, labels.name(row, self._context), above=above, marks=marks)
                yield replace(line, remark=_remark(row, waiting))

    def _frameworks(self, rivals: Sequence[Row]) -> Iterator[Line]:
        for synchronous in (True, False):
            of_kind = (row for row in rivals if row.framework_standing and row.synchronous == synchronous)
            found = sorted(of_kind, key=_rate, reverse=True)
            for row, above in zip(found, _above(found), strict=True):
                line = cells.line(row, labels.name(row, self._context), above=above, marks=())
                yield replace(line, says="", flags=())

    # ------------------------------------------------------------ what can be told

    def _details(self, group: int) -> tuple[Detail, ...]:
        """`3 rounds tell  N=2 6.1 % (--rounds 8: 3.0 %)`: the smallest difference that is found."""
        values: dict[str, list[Value]] = {}
        for one in self._resolutions:
            if one.group == group:
                label = f"{one.rounds} rounds tell{'' if one.synchronous else ', asynchronous'}"
                values.setdefault(label, []).append(_told(one))
        return tuple(Detail(label=label, values=tuple(of)) for label, of in values.items())


def _are_alone(by_size: Iterable[Sequence[Row]]) -> bool:
    """Whether each is the plain loop of another framework: there is nothing to tell but which is the fastest."""
    return all(
        all(row.is_plain for row in rivals) and len({row.framework for row in rivals}) == len(rivals)
        for rivals in by_size
    )


def _told(resolution: Resolution) -> Value:
    now = quantities.fraction(resolution.smallest_difference)
    then = quantities.fraction(resolution.smallest_difference_then)
    phrase = (now, f" (--rounds {resolution.more_rounds}: ", then, ")")
    return Value(world_size=resolution.world_size, phrase=phrase)


def _above(rows: Sequence[Row]) -> Iterator[str]:
    """What the rule above the first of them says, and that the others have none."""
    for index, row in enumerate(rows):
        apart = "" if row.synchronous else f", {APART}"
        yield "" if index else f"N = {row.world_size}{apart}"


def _rate(row: Row) -> float:
    return row.samples_per_s.mean if row.samples_per_s else -1.0


def _place(row: Row) -> tuple[bool, float]:
    return not cells.is_wrong(row), _rate(row)


def _remark(row: Row, synchronous: Sequence[Row]) -> Phrase:
    """What an asynchronous row's samples are worth beside those of the synchronous ones."""
    if row.synchronous:
        return ()
    staleness: Phrase = () if row.staleness is None else ("staleness ", quantities.steps(row.staleness))
    if row.loss_at is None or row.loss_at_samples is None:
        return staleness
    return (
        *staleness,
        ", loss " if staleness else "loss ",
        quantities.training_loss(row.loss_at),
        " after ",
        quantities.samples(row.loss_at_samples, row.workload),
        *_beside([other.loss_at for other in synchronous if other.loss_at is not None]),
    )


def _beside(losses: Sequence[float]) -> Phrase:
    """`(synchronous: 0.576 to 0.920)`."""
    if not losses:
        return ()
    low, high = quantities.training_loss(min(losses)), quantities.training_loss(max(losses))
    return " (synchronous: ", *quantities.low_to_high(low, high), ")"
