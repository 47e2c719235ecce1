"""The answer of a run: how well it scales, what is lost, what to try, whether to trust it, what is fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import force_setattr, replace

from scaling.analysis.measured.cell import cells
from scaling.analysis.table import accuracy, catalogue
from scaling.analysis.table.catalogue import is_wrong, mark_named, serious, unclaimed
from scaling.analysis.table.rows import Column, Comparison, Contender, Row, compared
from scaling.quiet.notes import Load, joined
from scaling.records.point import WANTED, Record
from scaling.records.run import WarningKind
from scaling.report import advice, imported, labels, quantities, verdict, words
from scaling.report.curves import MOST_BUSY_PERCENT, error_is_unknown
from scaling.report.headline import headline
from scaling.report.material import Material
from scaling.report.parts import Quantity
from scaling.text import counted, decimals, legible, one_line, several

# Smaller losses are not named.
LEAST = 0.01
NAMED = 6
MOST_LOSSES = 3


class Banner(Record, frozen=True, kw_only=True):
    """A serious mark, and the rows that have it."""

    mark: str
    says: str


class Answer(Record, frozen=True, kw_only=True):
    """The verdict on the headline row, and on the run. Empty texts are left out.

    `stamps`: the row's serious marks and doubts, which the sentence begins with.
    `faster`: networks, exchanges and frameworks compared at the largest world size.
    `judged`: lines about the verdict of scaling certify, with their labels.
    `lost`, `tries`: the largest losses, and what to try. `trust`: rounds, disturbances and marks of all rows.
    """

    sentence: str
    stamps: tuple[str, ...] = ()
    judged: tuple[tuple[str, str], ...] = ()
    faster: tuple[str, ...] = ()
    lost: str = ""
    tries: tuple[str, ...] = ()
    trust: str = ""

    def __post_init__(self) -> None:
        """Remove signs that are not printable, as a document does."""
        for name in self.__struct_fields__:
            force_setattr(self, name, legible(getattr(self, name)))

    @property
    def verdict(self) -> str:
        """The sentence after its stamps: `NOISY: torch:gloo reaches ...`."""
        return ": ".join(filter(None, (", ".join(self.stamps), self.sentence)))

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """The lines below the verdict, with their labels; further lines of a label have none."""
        found = [*self.judged]
        for label, texts in (
            ("faster", self.faster), ("lost", (self.lost,)), ("try", self.tries), ("trust", (self.trust,)),
        ):  # fmt: skip
            found += [("" if index else label, text) for index, text in enumerate(texts)]
        return tuple(one for one in found if one[1])


def answer(material: Material) -> Answer:
    found, of = _answer(material), material.certificate
    if of is None:
        return found
    return replace(found, stamps=(of.result, *found.stamps), judged=tuple(verdict.lines(of)))


def _answer(material: Material) -> Answer:
    row = headline(material.rows)
    if row is None:
        return _without_rows(material)
    # Control runs do not count.
    load = joined(cell.load for cell in cells(one for one in material.records if one.point.kind in WANTED))
    losses = _losses(row)
    # The headline's notes, then those of larger world sizes.
    rows = sorted(material.rows, key=lambda one: (one is not row, -one.world_size))
    notes = tuple(dict.fromkeys(note for one in rows for note in one.footnotes))
    doubts = (mark for mark in DOUBTS if mark in row.flags and row.failed is None)
    return Answer(
        sentence=_sentence(row, material),
        stamps=(*serious(row.flags), *doubts),
        faster=tuple(_faster(material, row.world_size)),
        lost="; ".join(filter(None, (_lost(row, losses), *advice.places(notes)))),
        tries=advice.tries(row, [cause for cause, _ in losses], load.programs, material.header, notes),
        trust="; ".join(_trust(material, load)),
    )


# ---------------------------------------------------------------- verdict


DOUBTS = ("NOISY", "ONE-ROUND")


def _without_rows(material: Material) -> Answer:
    if material.header.is_import:
        return _imported(material)
    if material.analysis.trainings:
        return _trained(material)
    return Answer(
        sentence="No exchange of this run has ended: there is no result.",
        tries=("the log and the notes say why; then --resume",) if material.records else (),
    )


def _trained(material: Material) -> Answer:
    """Return the training with the highest accuracy."""
    best = max(accuracy.best(list(material.analysis.trainings)).values(), key=accuracy.last_top1, default=None)
    if best is None:
        return Answer(sentence="No training of this run has ended.")
    name, on = labels.exchange(best.contender, material.context.shared), counted(best.world_size, "device")
    top1 = f"{100 * accuracy.last_top1(best):.1f} % top-1 after {counted(len(best.top1), 'epoch')}"
    seconds = "" if best.train_s is None else f", {best.train_s:.1f} s of training"
    return Answer(sentence=f"{name} on {on} reaches {top1}{seconds}.", stamps=serious(best.flags))


def _sentence(row: Row, material: Material) -> str:
    name, on = material.label(row), counted(row.world_size, "device")
    if row.failed is not None:
        return f"{name} failed on {on}: {row.failed.cause}. {_below(material)}"
    rate = _rate(row)
    speedup, efficiency = quantities.speedup(row.speedup), quantities.percent(row.efficiency)
    why = unclaimed(row)
    if row.workload.script and "AUDIT" in row.flags:
        why = f"{advice.audited(row)} (AUDIT)"
    if why or speedup is None or efficiency is None:
        return f"{name} trains {rate} on {on}. No efficiency is claimed: {why}."
    share = words.text((efficiency,))
    if row.world_size == 1:
        return f"{name} on one device reaches {share} of its plain loop: {rate}."
    return f"{name} reaches {share} of linear scaling on {on}: {rate}, {words.mean(speedup)}x."


def _imported(material: Material) -> Answer:
    cell = imported.headline(material.header)
    if cell is None or cell.rate is None:
        return Answer(sentence="The imported logs have no rate of a training.", stamps=("IMPORTED",))
    rate = f"{cell.rate.mean:,.{decimals(cell.rate.mean)}f} {cell.unit}/s"
    sentence = f"{cell.tool} says: {rate} on {counted(cell.world_size, 'device')}"
    if cell.speedup is not None and cell.efficiency is not None:
        share = _percent(cell.efficiency)
        base = "one" if cell.base_world_size == 1 else f"{cell.base_world_size}"
        sentence += f", {cell.speedup:.2f}x its own rate on {base}: {share} of linear scaling"
    return Answer(sentence=f"{sentence}. It was not measured here.", stamps=("IMPORTED",))


def _below(material: Material) -> str:
    """Name the largest world size that was measured, if a larger one failed."""
    row = headline([row for row in material.rows if row.failed is None])
    if row is None:
        return "No other row has a result."
    return f"The largest measured row: {counted(row.world_size, 'device')}, {material.label(row)}, {_rate(row)}."


def _rate(row: Row) -> str:
    rate = quantities.rate(row.samples_per_s, row.workload)
    return words.mean(quantities.grouped(rate)) if rate else words.NONE


# ---------------------------------------------------------------- lost


def _losses(row: Row) -> list[tuple[Column, Quantity]]:
    """Return the significant losses, the largest first."""
    found = [
        (cause, quantities.part(value, row.breakdown_intervals.get(cause.key)))
        for cause in catalogue.causes([row])
        if (value := getattr(row.breakdown, cause.key)) >= LEAST
    ]
    return sorted((one for one in found if not one[1].is_noise), key=lambda one: -one[1].value)


def _lost(row: Row, losses: Sequence[tuple[Column, Quantity]]) -> str:
    """Return `8.0 % ± 4.6 CPU time of the exchange, ...`."""
    if losses:
        return ", ".join(f"{words.text((size,))} {cause.phrase}" for cause, size in losses[:MOST_LOSSES])
    if row.breakdown is None or unclaimed(row):
        return ""
    found = [row.breakdown_intervals.get(cause.key) for cause in catalogue.causes([row])]
    halves = [None if one is None else one.half_width for one in found]
    if None in halves:
        return "not tested: a single round has no interval"
    return f"no cause above {_percent(max([LEAST, *filter(None, halves)]))} is significant"


def largest_loss(row: Row) -> str:
    """Return `exchange's CPU 8.0 %`; "-" if no loss is significant."""
    return next((f"{cause.title} {words.mean(size)}" for cause, size in _losses(row)), words.NONE)


def _percent(value: float) -> str:
    return words.mean(quantities.fraction(value))


# ---------------------------------------------------------------- trust


def _trust(material: Material, load: Load) -> Iterator[str]:
    # A figure joins the rounds that have its control runs too.
    rounds = (row.efficiency.n if row.efficiency else row.rounds for row in material.rows)
    yield counted(max(rounds, default=0), "round")
    yield from load.summary()
    yield from _warned(material, load)
    all_rows = counted(len(material.rows), "row")
    for mark in catalogue.MARKS:
        count = sum(mark.name in row.flags for row in material.rows)
        if count and mark.is_complaint:
            yield f"{mark.name}: {count} of {all_rows}"
    if count := sum("VERIFIED" in row.flags for row in material.rows):
        yield f"bytes VERIFIED in {count} of {all_rows}"


# By kind of warning, without those that a mark or the load has.
_WARNINGS: Mapping[WarningKind, str] = {
    "busy-cpus": f"CPUs over {MOST_BUSY_PERCENT} % busy while they emulated",
    "lost-cpus": "ranks with other CPUs than promised",
    "shared-servers": "servers on training nodes",
    "other": "other warnings",
}


def _warned(material: Material, load: Load) -> Iterator[str]:
    """Yield what `--verbose` warns of, briefly, with the number of points or rows."""
    if load.kind and not load.again:
        yield load.brief(load.kind)
    points = counted(len(material.records), "point")
    if partly := material.partly_failed:
        yield f"{len(partly)} of {points} failed"
    for kind, says in _WARNINGS.items():
        count = sum(any(one.kind == kind for one in record.warnings) for record in material.records)
        if count:
            yield f"{says} in {count} of {points}"
    if rows := [row for row in material.rows if error_is_unknown(row)]:
        yield f"the emulator's own error is unknown in {len(rows)} of {counted(len(material.rows), 'row')}"


# ---------------------------------------------------------------- faster


def _faster(material: Material, world_size: int) -> Iterator[str]:
    """Compare networks, then exchanges, then frameworks, each with the fastest at this world size."""
    by_contest: dict[tuple[object, ...], list[Comparison]] = {}
    for one in material.analysis.comparisons:
        if one.world_size == world_size:
            contest = (one.workload, one.hardware, one.placement, one.synchronous, one.framework)
            by_contest.setdefault(contest, []).append(one)
    for others in by_contest.values():
        best = others[0].best
        name = _namer(best, [one.other for one in others])
        ranked = sorted(others, key=lambda one: one.difference.mean if one.difference else 0.0, reverse=True)
        kind = "" if others[0].synchronous else "asynchronous: "
        yield f"{kind}{name(best)} is {', '.join(_standings(ranked, name))} at N={world_size}"
    for row in material.rows:
        if row.world_size == world_size and is_wrong(row):
            yield f"{material.label(row)} is not compared: {', '.join(serious(row.flags))}"


def _standings(ranked: Sequence[Comparison], name: Callable[[Contender], str]) -> Iterator[str]:
    """Yield the rivals within ± 2 %, those that are not separated with the difference that is detected, the others
    with their differences, and those without an interval."""
    if tied := [name(one.other) for one in ranked if compared(one.difference) == "tied"]:
        yield f"tied with {', '.join(tied)}"
    if apart := [one for one in ranked if compared(one.difference) == "not separated"]:
        detects = _percent(max(one.detects or 0.0 for one in apart))
        yield f"not separated from {', '.join(name(one.other) for one in apart)} (detects {detects})"
    for one in ranked:
        if one.advantage is not None and one.distinguishable:  # `4.2 % ± 1.1 faster than eth0`
            size = quantities.fraction(one.advantage.mean, one.advantage)
            said = (
                f"{_percent(-one.advantage.mean)} slower"
                if one.advantage.mean < 0
                else f"{words.text((size,))} faster"
            )
            yield f"{said} than {name(one.other)}"
    if unproven := [name(one.other) for one in ranked if one.difference is None or one.difference.low is None]:
        yield f"not proven to be faster than {', '.join(unproven)}"


def _namer(best: Contender, others: Sequence[Contender]) -> Callable[[Contender], str]:
    """Return the function that names strategies: by their network if nothing else differs."""
    everyone = (best, *others)
    shared = frozenset.intersection(*(frozenset(one.options.items()) for one in everyone))
    names = {labels.exchange(replace(one, interconnect="auto"), shared) for one in everyone}
    networks = {one.interconnect for one in everyone}
    if len(names) == 1 and len(networks) == len(everyone):
        return lambda one: one.interconnect
    return lambda one: labels.exchange(one, shared)


# ---------------------------------------------------------------- banners


def banners(material: Material) -> tuple[Banner, ...]:
    """Return a banner per serious mark, worst first. EMULATED has a notice in the document."""
    marks = serious({flag for row in material.rows for flag in row.flags})
    return tuple(Banner(mark=mark, says=_about(mark, material)) for mark in marks if mark_named(mark).about)


def _about(mark: str, material: Material) -> str:
    found = [row for row in material.rows if mark in row.flags]
    names = several([f"{one_line(material.label(row))} N={row.world_size}," for row in found], NAMED).rstrip(",")
    rows = counted(len(material.rows), "row")
    return f"{len(found)} of {rows}: {mark_named(mark).about}: {names}"
