"""Verdicts for the cells of two sides: Welch's test on logarithms, Holm's procedure over the cells.

    slower, faster       the interval excludes zero and the mean is beyond the loss that counts
    worse, better        the same for metrics of which less is better
    same                 the whole interval is within the loss that counts
    cannot tell          neither; with the number of rounds or runs needed
    newly failed, ...    worked before and fails now; needs no test

Bounds are equal in logarithms: -2 % and +2.04 %. So swapped sides give mirrored verdicts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import expm1, log, log1p
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import asdict, replace

from scaling.analysis.statistics import intervals
from scaling.analysis.statistics.intervals import Difference, Estimate, geometric, interval
from scaling.analysis.table.catalogue import unclaimed, unranked_marks
from scaling.analysis.table.rows import Row
from scaling.records.point import Hardware, Placement, Workload
from scaling.report import labels
from scaling.tools.compare import launches
from scaling.tools.compare.found import Cell, Change, Mean, Metric, Unit, Value, Verdict, concerns
from scaling.tools.compare.launches import Group

# ---------------------------------------------------------------- pairs


# identity of a cell: strategy, interconnect, options, servers, where they run, world size
Who = tuple[str, str, tuple[tuple[str, str], ...], int, str, int]
Key = tuple[Who, Workload, Hardware, Placement]
# flags that make a row's values unusable, worst first
STATES = ("FAILED", *unranked_marks())


class Pair(NamedTuple):
    """The rows of one cell, one per run; a side may be empty. `apart` lists settings that differ."""

    base: tuple[Row, ...]
    new: tuple[Row, ...]
    apart: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def shown(self) -> Row:
        return (self.new or self.base)[0]


def pairs(base: Sequence[Sequence[Row]], new: Sequence[Sequence[Row]]) -> list[Pair]:
    """Match the cells of both sides: equal cells first, then cells of one name with different settings."""
    before, after = _by_cell(base), _by_cell(new)
    equal = {key: after.pop(key) for key in before if key in after}
    found = []
    for key, rows in before.items():
        renamed = None if key in equal else next((other for other in after if other[0] == key[0]), None)
        others = equal.get(key, ()) if renamed is None else after.pop(renamed)
        found.append(Pair(rows, others, tuple(_apart(rows[0], others[0])) if renamed else ()))
    return [*map(_without_lost, found), *(Pair((), rows) for rows in after.values())]


def _by_cell(sides: Sequence[Sequence[Row]]) -> dict[Key, tuple[Row, ...]]:
    found: dict[Key, tuple[Row, ...]] = {}
    for rows in sides:
        for row in rows:
            found[_key(row)] = (*found.get(_key(row), ()), row)
    return found


def _key(row: Row) -> Key:
    options = tuple(sorted(row.options.items()))
    exchange = row.strategy, row.interconnect, options, row.servers, row.server_hosts, row.world_size
    return exchange, row.workload, row.hardware, row.placement


def _apart(one: Row, other: Row) -> Iterator[str]:
    for before, after in ((one.workload, other.workload), (one.hardware, other.hardware)):
        told = asdict(after)
        yield from (
            f"{name} {value} | {told[name]}" for name, value in asdict(before).items() if told[name] != value
        )
    if one.placement != other.placement:
        yield f"placement {one.placement} | {other.placement}"


def _without_lost(pair: Pair) -> Pair:
    """Drop runs in which the cell failed, if it worked in other runs of the base."""
    had = states(pair.base)
    base = tuple(row for row in pair.base if not states([row]))
    if not had or not base:
        return pair
    new = tuple(row for row in pair.new if not any(state in had for state in states([row]))) or pair.new
    sides = (("base", pair.base, base), ("new", pair.new, new))
    left_out = tuple(
        f"{' '.join(states(rows))} in {len(rows) - len(kept)} of {len(rows)} {name} runs, which are left out"
        for name, rows, kept in sides
        if len(kept) < len(rows)
    )
    return pair._replace(base=base, new=new, left_out=left_out)


def states(rows: Sequence[Row]) -> list[str]:
    return [state for state in STATES if any(state in row.flags for row in rows)]


# ---------------------------------------------------------------- verdicts

NEWLY: Mapping[str, Verdict] = {
    "FAILED": "newly failed",
    "OVERSUBSCRIBED": "newly oversubscribed",
    "MISLABELLED": "newly mislabelled",
    "AUDIT": "newly doubtful",
    "UNSENT": "newly unsent",
}


class Rule(NamedTuple):
    """How cells are judged. `fail_above` is a fraction or points / 100, `apart` differences between the sides.

    If the unit is rounds: `runs` are the launches a side, `older` runs of one code that show how launches differ.
    """

    metric: Metric
    fail_above: float
    unit: Unit
    although_different: bool = False
    apart: tuple[str, ...] = ()
    runs: tuple[int, int] = (1, 1)
    older: tuple[Group, ...] = ()

    @property
    def bound(self) -> float:
        """Return the loss that counts, as a difference of logarithms for ratios."""
        return -log1p(-self.fail_above) if self.metric.is_ratio else self.fail_above

    def estimates(self, rows: Sequence[Row]) -> list[Estimate]:
        found = map(self.metric.of, rows)
        return [one for one in found if one is not None and (one.mean > 0 or not self.metric.is_ratio)]

    def logarithms(self, rows: Sequence[Row]) -> list[float]:
        return [log(one.mean) if self.metric.is_ratio else one.mean for one in self.estimates(rows)]

    def shown(self, difference: float) -> float:
        """Return a gain of the new side, which is negative for a loss whatever the metric, as a change."""
        change = self.metric.sign * difference
        return expm1(change) if self.metric.is_ratio else change


def cells(base: Sequence[Sequence[Row]], new: Sequence[Sequence[Row]], rule: Rule) -> tuple[Cell, ...]:
    found = pairs(base, new)
    context = labels.context([row for pair in found for row in (*pair.base, *pair.new)])
    names = (f"{labels.title([pair.shown], context)} N={pair.shown.world_size}" for pair in found)
    judged = [_untested(pair, name, rule) for pair, name in zip(found, names, strict=True)]
    differences = _differences({at: found[at] for at in range(len(found)) if judged[at].verdict == "same"}, rule)
    wide = _widened({at: one for at, one in differences.items() if one.se is not None}, found, rule)
    differences |= {at: one.difference for at, one in wide.items()}
    tested = [at for at, one in differences.items() if one.se is not None]
    levels = dict(zip(tested, intervals.holm([differences[at] for at in tested]), strict=True))
    hardest = intervals.ALPHA / max(1, len(tested))
    for at, one in differences.items():
        judged[at] = _tested(judged[at], one, levels.get(at), rule)
        if at in levels:
            # In another comparison the cell may be noisier than its kin, and share no variance.
            alone = one._replace(df=min(one.df, 2 * (one.n - 1))) if rule.unit == "runs" else one
            detects = abs(rule.shown(-launches.detected(alone, hardest, rule.bound)))
            judged[at] = replace(judged[at], detects=detects)
        if at in wide:
            by = wide[at]
            judged[at] = replace(judged[at], launch_sd=by.launch_sd, launch_sd_is_assumed=by.is_assumed)
    return tuple(judged)


def means(found: Sequence[Cell]) -> tuple[Mean, ...]:
    """Return the geometric mean change of each model with several cells."""
    by_model: dict[str, list[float]] = defaultdict(list)
    for cell in found:
        if cell.change is not None:
            by_model[cell.workload.model].append(log1p(cell.change.mean))
    return tuple(
        Mean(model=model, change=expm1(fmean(logs)), cells=len(logs))
        for model, logs in by_model.items()
        if len(logs) > 1
    )


def _untested(pair: Pair, name: str, rule: Rule) -> Cell:
    """Verdict `same` means that the test decides."""
    verdict, reason = _standing(pair, rule)
    row = pair.shown
    return Cell(
        name=name,
        strategy=row.strategy,
        interconnect=row.interconnect,
        options=row.options,
        world_size=row.world_size,
        workload=row.workload,
        hardware=row.hardware,
        placement=row.placement,
        servers=row.servers,
        server_hosts=row.server_hosts,
        unit=rule.metric.unit.format(unit=row.workload.unit),
        verdict=verdict,
        reason="; ".join(filter(None, (reason, *pair.left_out, *_failures(pair)))),
        base=_value(pair.base, rule),
        new=_value(pair.new, rule),
        flags=tuple(dict.fromkeys(flag for one in pair.new or pair.base for flag in one.flags)),
    )


def _standing(pair: Pair, rule: Rule) -> tuple[Verdict, str]:
    if not pair.new:
        return "missing", "the new runs do not have it"
    if not pair.base:
        return "new", "the base does not have it"
    if reason := _incomparable(pair, rule):
        return "not comparable", reason
    before, after = states(pair.base), states(pair.new)
    why = next((f"{one.cause}: {one.message}" for row in pair.new if (one := row.failed)), "")
    if newly := [state for state in after if state not in before]:
        return NEWLY[newly[0]], why
    if "FAILED" in after:
        return "failed before and after", why
    if before != after:
        return "mended", f"was {' '.join(state for state in before if state not in after)}"
    if not rule.estimates(pair.base):
        return "cannot tell", f"the base {_lacks(pair.base, rule.metric, 'claims', 'has')}"
    if not rule.estimates(pair.new):  # a loss, so that the gate detects it
        return "newly unknown", f"the new runs {_lacks(pair.new, rule.metric, 'claim', 'have')}"
    return "same", ""


def _lacks(rows: Sequence[Row], metric: Metric, claim: str, have: str) -> str:
    if not metric.is_claimed:
        return f"{have} no {metric.title} here"
    return f"{claim} no {metric.title} here" + next((f": {why}" for row in rows if (why := unclaimed(row))), "")


def _incomparable(pair: Pair, rule: Rule) -> str:
    units = pair.base[0].workload.unit, pair.new[0].workload.unit
    if rule.metric.needs_same_unit and units[0] != units[1]:
        return f"unit {units[0]} | {units[1]}"
    if rule.although_different:
        return ""
    strategies = {row.strategy for row in (*pair.base, *pair.new)}
    launches = (what for what in rule.apart if any(concerns(what, strategy) for strategy in strategies))
    return "; ".join((*pair.apart, *launches))


def _failures(pair: Pair) -> Iterator[str]:
    for name, rows in (("base", pair.base), ("new", pair.new)):
        tried, measured = sum(row.rounds_tried for row in rows), sum(row.rounds for row in rows)
        if 0 < measured < tried:
            yield f"{tried - measured} of {tried} {name} rounds failed"


def _value(rows: Sequence[Row], rule: Rule) -> Value | None:
    estimates = rule.estimates(rows)
    if not estimates:
        return None
    one = estimates[0]
    if rule.unit == "runs":
        one = (geometric if rule.metric.is_ratio else interval)([estimate.mean for estimate in estimates])
    return Value(mean=one.mean, low=one.low, high=one.high, n=one.n)


# ---------------------------------------------------------------- tests


def _differences(found: Mapping[int, Pair], rule: Rule) -> dict[int, Difference]:
    """Return the new side's gains by index. Runs share noise with all cells of one work on as many devices."""
    differences, alike = {}, defaultdict(list)
    for at, pair in found.items():
        gain = intervals.welch(*(_side(rows, rule) for rows in (pair.base, pair.new)))
        differences[at] = gain._replace(mean=rule.metric.sign * gain.mean)
        alike[pair.shown.workload, pair.shown.hardware, pair.shown.world_size].append(at)
    for places in alike.values() if rule.unit == "runs" else ():
        differences.update(zip(places, intervals.pooled([differences[at] for at in places]), strict=True))
    return differences


def _side(rows: Sequence[Row], rule: Rule) -> intervals.Side:
    if rule.unit == "rounds":
        return intervals.of_estimate(rule.estimates(rows)[0], logarithm=rule.metric.is_ratio)
    return intervals.of_values(rule.logarithms(rows))


def _widened(differences: Mapping[int, Difference], found: Sequence[Pair], rule: Rule) -> dict[int, launches.Wide]:
    """Add how launches differ to differences between rounds; empty if the unit is runs."""
    if rule.unit == "runs":
        return {}
    values: dict[Key, list[list[float]]] = defaultdict(list)
    for group in rule.older:
        for key, rows in _by_cell(group).items():
            values[key].append(rule.logarithms([row for row in rows if not states([row])]))
    learnt = launches.between(values, lambda key: (*key[1:3], key[0][-1]))
    keys = {at: _key(found[at].base[0]) for at in differences}
    wide = {at: launches.widened(one, rule.runs, learnt.get(keys[at])) for at, one in differences.items()}
    return launches.scattered(wide, rule.runs)


def _tested(cell: Cell, found: Difference, level: float | None, rule: Rule) -> Cell:
    half = None if level is None else found.half(level)
    if half is None or level is None:
        change = Change(mean=rule.shown(found.mean), low=None, high=None, confidence=None, p=None)
        none = f"a single {rule.unit.removesuffix('s')} on one side has no interval"
        if found.n > 1:
            none = f"the {rule.metric.title} of one launch has no interval: compare three runs a side"
        reason = "; ".join(filter(None, (none, cell.reason)))
        return replace(cell, verdict="cannot tell", reason=reason, change=change)
    low, high = sorted(rule.shown(found.mean + end) for end in (-half, half))
    change = Change(mean=rule.shown(found.mean), low=low, high=high, confidence=1 - level, p=found.p)
    verdict = _judged(found.mean, half, rule)
    if verdict != "cannot tell":
        return replace(cell, verdict=verdict, change=change)
    loss = abs(found.mean)
    wanted = loss if loss > rule.bound else rule.bound - loss
    if rule.unit == "runs":
        needed = intervals.units_needed(found, level, wanted)
    else:
        needed = launches.launches_needed(found, level, wanted, min(rule.runs))
    count = f"over {intervals.MOST_UNITS}" if needed is None else f"about {needed}"
    reason = "; ".join(filter(None, (f"{count} runs a side would decide", cell.reason)))
    return replace(cell, verdict=verdict, change=change, needed=needed, reason=reason)


def _judged(gain: float, half: float, rule: Rule) -> Verdict:
    loss, win = rule.metric.verdicts
    if gain + half < 0 and gain < -rule.bound:
        return loss
    if gain - half > 0 and gain > rule.bound:
        return win
    return "same" if abs(gain) + half <= rule.bound else "cannot tell"
