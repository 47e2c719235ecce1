"""The scaling curves: a table per strategy and network, with details below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from scaling import text
from scaling.analysis.measured.cpu import ServerUse
from scaling.analysis.measured.device_use import Traced
from scaling.analysis.measured.traffic import Receipt, nccl_text
from scaling.analysis.table import catalogue
from scaling.analysis.table.cost import relative
from scaling.analysis.table.rows import PERCENT, DataWait, Row
from scaling.records.run import Emulation
from scaling.report import devices, labels, quantities
from scaling.report.labels import Context
from scaling.report.notes import Notes
from scaling.report.parts import Detail, Line, Phrase, Quantity, Section, Value

# ---------------------------------------------------------------- curves


def by_curve(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the rows of each scaling curve, by world size."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.curve, []).append(row)
    return list(found.values())


def sections(
    rows: Sequence[Row], context: Context, planned: int, notes: Notes, known: Sequence[Row]
) -> Iterator[Section]:
    """Yield the table of each curve. `planned`: rounds of a complete row; `known`: all rows of the report."""
    stale = frozenset((row.group, row.world_size) for row in known if not row.synchronous and row.rounds)
    for of_curve in by_curve(rows):
        yield Section(
            title=labels.title(of_curve, context),
            columns=catalogue.columns("curve", of_curve),
            lines=tuple(_lines(of_curve, context, planned, notes)),
            details=_details(of_curve, stale),
            group=of_curve[0].group,
            is_curve=True,
        )


def _lines(rows: Sequence[Row], context: Context, planned: int, notes: Notes) -> Iterator[Line]:
    for row, before in zip(rows, (None, *rows[:-1]), strict=True):
        above = "several nodes" if row.nodes > 1 and before is not None and before.nodes == 1 else ""
        marks = notes.causes(quantities.notes_of(row, planned))
        yield quantities.line(row, labels.name(row, context), above=above, marks=marks)


# ---------------------------------------------------------------- details


MOST_SERVERS = 4
# Above this use of the CPU, the emulator's error is unknown (sweep/outcome.py warns there).
MOST_BUSY_PERCENT = 80
Said = tuple[str, Phrase]


def _details(rows: Sequence[Row], stale: frozenset[tuple[int, int]]) -> tuple[Detail, ...]:
    """Return the lines below a curve's table, for values without a column. `stale`: groups and world sizes with an
    asynchronous row."""
    found: dict[str, list[Value]] = {}
    for row in rows:
        for label, phrase in (*_of_efficiency(row), *_of_training(row, stale), *_of_hardware(row)):
            values = found.setdefault(label, [])
            if phrase:
                values.append(Value(world_size=row.world_size, phrase=phrase))
    return tuple(Detail(label=label, values=tuple(values)) for label, values in found.items() if values)


def _of_efficiency(row: Row) -> Iterator[Said]:
    """Yield labels with what is said of a row; all rows have the same labels."""
    claims, mean = not row.learnt_less, row.efficiency.mean if row.efficiency else None
    speedup, own = quantities.speedup(row.speedup), quantities.percent(row.strategy_efficiency)
    # The table has no room for the interval.
    yield "speedup", (speedup,) if claims and speedup and row.speedup and row.speedup.df else ()
    soak: Phrase = ()
    if row.lasting is not None and mean is not None and claims:
        change = row.lasting.change
        later = quantities.fraction(mean * (1 + change.mean), change.times(mean).plus(mean))
        soak = (later, f" after {row.lasting.after_s:.0f} s more")
    yield "soak", soak
    yield "against its own N=1", (own,) if own and row.world_size > 1 and claims else ()
    factors: Phrase = ()
    if row.intra_node is not None and row.inter_node is not None and claims:
        factors = (quantities.fraction(row.intra_node), " x ", quantities.fraction(row.inter_node))
    yield "intra-node x inter-node", factors
    cost = relative(row) if row.world_size > 1 else None
    yield "relative cost", (Quantity(value=cost.mean, digits=2),) if cost else ()
    causes = ((cause.title, row.breakdown_intervals.get(cause.key)) for cause in catalogue.causes([row]))
    known = ((title, quantities.fraction(one.mean, one)) for title, one in causes if one and one.df)
    yield "loss by cause", quantities.listed((f"{title} ", percent) for title, percent in known)
    yield "data wait", _data(row, row.data_wait) if row.data_wait else ()
    parts = ((f"{name} ", quantities.fraction(part)) for name, part in row.exchange_cpu_parts.items())
    yield "exchange's CPU", quantities.listed(parts)


def _data(row: Row, found: DataWait) -> Phrase:
    """Return `31.0 % of the step, 12.0 % of one device's alone; feeds alone 1,234 images/s; ...`."""
    feed = quantities.rate_of(found.feed_samples_per_s, row.workload)
    blocked = None if row.waited_s is None else quantities.milliseconds(row.waited_s)
    return (
        quantities.fraction(found.of_step),
        " of the step, ",
        quantities.fraction(found.of_alone),
        " of one device's alone",
        *(() if feed is None else ("; feeds alone ", feed)),
        *(() if blocked is None else ("; blocked in the feed ", blocked, " a step")),
    )


def _of_training(row: Row, stale: frozenset[tuple[int, int]]) -> Iterator[Said]:
    loss, first, last = quantities.training_loss, row.first_loss, row.last_loss
    yield "training loss", () if first is None or last is None else (loss(first), " to ", loss(last))
    equal: Phrase = ()
    if row.loss_at is not None and row.loss_at_samples is not None and (row.group, row.world_size) in stale:
        equal = (loss(row.loss_at), " (", quantities.samples(row.loss_at_samples, row.workload), ")")
    yield "loss at equal samples", equal
    yield "staleness, steps", () if row.staleness is None else (quantities.steps(row.staleness),)


def _of_hardware(row: Row) -> Iterator[Said]:
    work, busy, traced = row.workload, row.machine_cpu_percent, row.traced
    yield "bytes between nodes", carried(row.receipt) if row.receipt else ()
    yield "NCCL", tuple(filter(None, [nccl_text(row.nccl)])) if row.nccl else ()
    yield "device", devices.device(row.device_use, work) if row.device_use else ()
    yield "CPU and DRAM", devices.machine(row.machine_energy, work) if row.machine_energy else ()
    busiest: Phrase = ()
    for path in row.paths[:1]:
        share, rate = quantities.fraction(path.busy_share, digits=0), quantities.bit_rate(path.bits_per_s)
        busiest = (f"{path} ", share, " busy at ", rate)
    yield "busiest path", busiest
    yield "CPU while emulating", () if busy is None else (Quantity(value=busy, digits=0, unit=PERCENT),)
    yield "emulator's own error", _late(row, row.emulation) if row.emulation and row.world_size > 1 else ()
    yield "traced step", _traced_step(traced) if traced else ()
    yield "traced, on the GPU", _on_gpu(traced) if traced else ()
    yield "trace files", (", ".join(traced.files),) if traced and traced.files else ()
    yield "servers", _servers(row.server_use) if row.server_use else ()


def carried(receipt: Receipt) -> Phrase:
    """Return `99.9 % on ib0 (0.1 % eth0), 1.04 x expected`. It is `0.53 to 1.00 x expected` if the library chooses
    the algorithm."""
    total = sum(receipt.sent_bytes.values())
    others: list[str | Quantity] = []
    for card, sent in receipt.sent_bytes.items():
        if card not in receipt.wanted and total:
            others += [", " if others else " (", quantities.fraction(sent / total), f" {card}"]
    said: Phrase = (quantities.fraction(receipt.share), f" on {', '.join(receipt.wanted) or 'no card'}")
    said += (*others, ")") if others and len(receipt.sent_bytes) > 1 else ()
    if receipt.over_expected is not None:
        low, high = (Quantity(value=end, digits=2) for end in receipt.over_expected)
        said += (", ", *quantities.low_to_high(low, high), " x expected")
    return said


def error_is_unknown(row: Row) -> bool:
    """Whether the emulator's own error is unknown: on a busy machine, or where no bound holds."""
    if row.world_size == 1 or row.emulation is None:
        return False
    return row.emulation.error_fraction is None or (row.machine_cpu_percent or 0.0) > MOST_BUSY_PERCENT


def _late(row: Row, found: Emulation) -> Phrase:
    """Return `up to 0.5 % (last bucket 6.5 ms, on the links 3.4 ms)`; unknown on a busy machine."""
    if found.error_fraction is None:
        return ("unknown: the bound is for DDP's default buckets over a ring",)
    if error_is_unknown(row):
        return ("unknown, the machine was busy",)
    on_links: Phrase = (", on the links ", quantities.milliseconds(found.wire_s)) if found.wire_s else ()
    took = quantities.milliseconds(found.tail_s)
    return "up to ", quantities.fraction(found.error_fraction), " (last bucket ", took, *on_links, ")"


def _traced_step(traced: Traced) -> Phrase:
    if traced.step_s is None:
        return ("not of all ranks",)
    return quantities.milliseconds(traced.step_s), ", untraced ", quantities.milliseconds(traced.untraced_s)


def _on_gpu(traced: Traced) -> Phrase:
    """Return `computing 35.1 ms, slowed 1.2 ms, ...`; fractions if the profiler slowed the step."""
    if (of := traced.gpu) is None:
        return ()
    parts = {
        "computing": of.compute_s, "slowed": of.slowed_s, "other kernels": of.other_s, "transfer": of.transfer_s,
        "waiting": of.waiting_s, "idle": of.idle_s, "host": of.host_s,
    }  # fmt: skip
    known = [(f"{name} ", seconds) for name, seconds in parts.items() if seconds is not None]
    if traced.is_faithful:
        return quantities.listed((name, quantities.milliseconds(seconds)) for name, seconds in known)
    whole_s = sum(seconds for _, seconds in known)
    return quantities.listed((name, quantities.fraction(seconds / whole_s)) for name, seconds in known)


def _servers(used: Sequence[ServerUse]) -> Phrase:
    if len(used) <= MOST_SERVERS:
        return quantities.distinct((f"{one.name} on {one.host}", *_of_a_core([one])) for one in used)
    hosts = list(dict.fromkeys(one.host for one in used))
    return quantities.count(len(used), "server"), f" on {text.several(hosts)}", *_of_a_core(used)


def _of_a_core(used: Iterable[ServerUse]) -> Phrase:
    known = sorted(one.cpu_percent for one in used if one.cpu_percent is not None)
    if not known:
        return ()
    low = Quantity(value=known[0], digits=0)
    high = Quantity(value=known[-1], digits=0, unit=PERCENT)
    return ", ", *quantities.low_to_high(low, high), " of a core"
