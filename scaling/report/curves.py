"""The scaling curves: a table per strategy and network, with details below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from scaling import text
from scaling.analysis.measured.cpu import ServerUse
from scaling.analysis.measured.device_use import GpuSplit, Traced
from scaling.analysis.measured.traffic import Path, Receipt, nccl_text
from scaling.analysis.table import catalogue
from scaling.analysis.table.cost import relative
from scaling.analysis.table.rows import PERCENT, DataWait, Row
from scaling.records.run import Emulation
from scaling.report import devices, labels, quantities
from scaling.report.labels import Context
from scaling.report.notes import Notes
from scaling.report.parts import Detail, Line, Phrase, Quantity, Section, Value

# ---------------------------------------------------------------- details


MOST_SERVERS = 4
# Above this use of the CPU, the emulator's error is unknown (sweep/outcome.py warns there).
MOST_BUSY_PERCENT = 80


def details(rows: Sequence[Row], stale: frozenset[tuple[int, int]]) -> tuple[Detail, ...]:
    """Return the lines below a curve's table, for values without a column. `stale`: groups and world sizes with an
    asynchronous row."""
    said: dict[str, Callable[[Row], Phrase]] = {
        "speedup": _speedup,
        "soak": _soak,
        "against its own N=1": _own,
        "intra-node x inter-node": _two_factors,
        "relative cost": _cost,
        "loss by cause": _causes,
        "data wait": lambda row: _data(row, row.data_wait) if row.data_wait else (),
        "exchange's CPU": _exchange_cpu,
        "training loss": _trained,
        "loss at equal samples": lambda row: _equal(row) if (row.group, row.world_size) in stale else (),
        "staleness, steps": lambda row: () if row.staleness is None else (quantities.steps(row.staleness),),
        "bytes between nodes": lambda row: carried(row.receipt) if row.receipt else (),
        "NCCL": lambda row: tuple(filter(None, [nccl_text(row.nccl)])) if row.nccl else (),
        "device": lambda row: devices.device(row.device_use, row.workload) if row.device_use else (),
        "CPU and DRAM": lambda row: (
            devices.machine(row.machine_energy, row.workload) if row.machine_energy else ()
        ),
        "busiest path": lambda row: _path(row.paths[0]) if row.paths else (),
        "CPU while emulating": _emulating,
        "emulator's own error": lambda row: _late(row, row.emulation) if row.emulation else (),
        "traced step": lambda row: _traced_step(row.traced) if row.traced else (),
        "traced, on the GPU": lambda row: _on_gpu(row.traced) if row.traced else (),
        "trace files": lambda row: (", ".join(row.traced.files),) if row.traced and row.traced.files else (),
        "servers": lambda row: _servers(row.server_use) if row.server_use else (),
    }
    found = (Detail(label=label, values=tuple(_values(rows, of))) for label, of in said.items())
    return tuple(detail for detail in found if detail.values)


def _values(rows: Iterable[Row], of: Callable[[Row], Phrase]) -> Iterator[Value]:
    return (Value(world_size=row.world_size, phrase=phrase) for row in rows if (phrase := of(row)))


def _speedup(row: Row) -> Phrase:
    """The table has no room for the interval."""
    found = None if row.learnt_less else row.speedup
    told = quantities.speedup(found) if found and found.df else None
    return () if told is None else (told,)


def _soak(row: Row) -> Phrase:
    """Return `85.2 % ± 0.9 after 9 s more`: the efficiency after the soak."""
    if row.lasting is None or row.efficiency is None or row.learnt_less:
        return ()
    mean, change = row.efficiency.mean, row.lasting.change
    later = quantities.fraction(mean * (1 + change.mean), change.times(mean).plus(mean))
    return later, f" after {row.lasting.after_s:.0f} s more"


def _own(row: Row) -> Phrase:
    own = quantities.percent(row.strategy_efficiency)
    return () if own is None or row.world_size == 1 or row.learnt_less else (own,)


def _cost(row: Row) -> Phrase:
    found = relative(row) if row.world_size > 1 else None
    return () if found is None else (Quantity(value=found.mean, digits=2),)


def _two_factors(row: Row) -> Phrase:
    if row.intra_node is None or row.inter_node is None or row.learnt_less:
        return ()
    return quantities.fraction(row.intra_node), " x ", quantities.fraction(row.inter_node)


def _causes(row: Row) -> Phrase:
    """Return `contention 2.8 % ± 0.4, waiting 1.2 % ± 0.6`: causes with an interval."""
    found = ((cause.title, row.breakdown_intervals.get(cause.key)) for cause in catalogue.causes([row]))
    known = [(title, percent) for title, one in found if one and one.df and (percent := quantities.percent(one))]
    return quantities.listed((f"{title} ", percent) for title, percent in known)


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


def _exchange_cpu(row: Row) -> Phrase:
    return quantities.listed(
        (f"{name} ", quantities.fraction(part)) for name, part in row.exchange_cpu_parts.items()
    )


def _trained(row: Row) -> Phrase:
    if row.first_loss is None or row.last_loss is None:
        return ()
    return quantities.training_loss(row.first_loss), " to ", quantities.training_loss(row.last_loss)


def _equal(row: Row) -> Phrase:
    if row.loss_at is None or row.loss_at_samples is None:
        return ()
    count = quantities.samples(row.loss_at_samples, row.workload)
    return quantities.training_loss(row.loss_at), " (", count, ")"


def carried(receipt: Receipt) -> Phrase:
    """Return `99.9 % on ib0 (0.1 % eth0), 1.04 x expected`. It is `0.53 to 1.00 x expected` if the library chooses
    the algorithm."""
    total = sum(receipt.sent_bytes.values())
    others: list[str | Quantity] = []
    for card, sent in receipt.sent_bytes.items():
        if card not in receipt.wanted and total:
            others += [", " if others else " (", quantities.fraction(sent / total), f" {card}"]
    ratio = receipt.over_expected
    return (
        quantities.fraction(receipt.share),
        f" on {', '.join(receipt.wanted) or 'no card'}",
        *((*others, ")") if others and len(receipt.sent_bytes) > 1 else ()),
        *(() if ratio is None else (", ", *_times(*ratio), " x expected")),
    )


def _times(low: float, high: float) -> Phrase:
    return quantities.low_to_high(Quantity(value=low, digits=2), Quantity(value=high, digits=2))


def _path(path: Path) -> Phrase:
    return (
        f"{path} ",
        quantities.fraction(path.busy_share, digits=0),
        " busy at ",
        quantities.bit_rate(path.bits_per_s),
    )


def _emulating(row: Row) -> Phrase:
    used = row.machine_cpu_percent
    return () if used is None else (Quantity(value=used, digits=0, unit=PERCENT),)


def error_is_unknown(row: Row) -> bool:
    """Whether the emulator's own error is unknown: on a busy machine, or where no bound holds."""
    if row.world_size == 1 or row.emulation is None:
        return False
    return row.emulation.error_fraction is None or (row.machine_cpu_percent or 0.0) > MOST_BUSY_PERCENT


def _late(row: Row, found: Emulation) -> Phrase:
    """Return `up to 0.5 % (last bucket 6.5 ms, on the links 3.4 ms)`; unknown on a busy machine."""
    if row.world_size == 1:
        return ()
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
    if traced.gpu is None:
        return ()
    parts = {name: value for name, of in _ON_GPU.items() if (value := of(traced.gpu)) is not None}
    whole_s = sum(parts.values())
    if traced.is_faithful:
        said = {name: quantities.milliseconds(seconds) for name, seconds in parts.items()}
    else:
        said = {name: quantities.fraction(seconds / whole_s) for name, seconds in parts.items()}
    phrases: Iterable[Phrase] = ((", ", f"{name} ", value) for name, value in said.items())
    return tuple(chain.from_iterable(phrases))[1:]


_ON_GPU: Mapping[str, Callable[[GpuSplit], float | None]] = {
    "computing": lambda split: split.compute_s,
    "slowed": lambda split: split.slowed_s,
    "other kernels": lambda split: split.other_s,
    "transfer": lambda split: split.transfer_s,
    "waiting": lambda split: split.waiting_s,
    "idle": lambda split: split.idle_s,
    "host": lambda split: split.host_s,
}


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


# ---------------------------------------------------------------- curves


def by_curve(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the rows of each scaling curve, by world size."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.curve, []).append(row)
    return list(found.values())


def curve(
    rows: Sequence[Row], context: Context, planned: int, notes: Notes, stale: frozenset[tuple[int, int]]
) -> Section:
    """Make the table of one curve. `planned`: rounds of a complete row. `stale`: groups and world sizes with an
    asynchronous row."""
    return Section(
        title=labels.title(rows, context),
        columns=catalogue.columns("curve", rows),
        lines=tuple(
            _line(row, before, context, notes.causes(quantities.notes_of(row, planned)))
            for row, before in zip(rows, (None, *rows[:-1]), strict=True)
        ),
        details=details(rows, stale),
        group=rows[0].group,
        is_curve=True,
    )


def _line(row: Row, before: Row | None, context: Context, marks: tuple[int, ...]) -> Line:
    crosses = row.nodes > 1 and before is not None and before.nodes == 1
    return quantities.line(row, labels.name(row, context), above="several nodes" if crosses else "", marks=marks)
