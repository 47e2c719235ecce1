"""The tables of a run, before any layout: comparisons, curves with their details, baselines. How to read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import floor, log10
from typing import Any

from msgspec.structs import replace

from scaling import frameworks, text
from scaling.analysis.measured.cpu import ServerUse
from scaling.analysis.measured.device_use import DeviceUse, MachineUse, Traced
from scaling.analysis.measured.traffic import Receipt, nccl_text
from scaling.analysis.table import catalogue
from scaling.analysis.table.catalogue import explanations
from scaling.analysis.table.cost import relative
from scaling.analysis.table.rows import PERCENT, Analysis, Baseline, Column, DataWait, Report, Row, Table
from scaling.records.point import Unit, Workload, shown_name
from scaling.records.run import Emulation
from scaling.report import labels, quantities
from scaling.report.labels import Context, mean_rate
from scaling.report.notes import Notes
from scaling.report.parts import Detail, Entry, Line, Quantity, Section
from scaling.text import counted, several

# ---------------------------------------------------------------- how to read


def how_to_read(report: Report) -> Iterator[Entry]:
    """Yield an entry for each kind of figure and mark that the report has."""
    rows = report.rows
    rivals = " of its framework" if len({row.framework for row in rows}) > 1 else ""
    unreadable = (row.machine_energy.unreadable for row in rows if row.machine_energy)
    found = {
        "rates": labels.rates(rows),
        "efficiency": _efficiency(report.analysis),
        "causes": _breakdown(rows),
        "rivals": f"those of the fastest exchange{rivals}",
        "unranked": _unranked(rows),
        "unreadable": next(filter(None, unreadable), ""),
    }
    yield from ((label, said.format(**found)) for label, said in explanations(report))
    own = {label: said for row in rows for label, said in frameworks.named(row.strategy).explained.items()}
    yield from own.items()


def _unranked(rows: Sequence[Row]) -> str:
    said = ""
    if not all(row.synchronous for row in rows):
        said = (
            " Asynchronous strategies are never ranked against synchronous ones: "
            f"{labels.one_sample(rows)} trained on old parameters teaches less."
        )
    wrong = " and ".join(sorted({one for row in rows for one in row.flags if catalogue.mark_named(one).is_wrong}))
    return said + (f" {wrong} rows are not ranked: they are not what their names say." if wrong else "")


def _efficiency(analysis: Analysis) -> str:
    names = list(dict.fromkeys(baseline.strategy for baseline in analysis.baselines))
    known = sorted({row.efficiency.df for row in analysis.rows if row.efficiency and row.efficiency.df})
    freedom = ""
    if known:
        df = " to ".join(dict.fromkeys((f"{known[0]}", f"{known[-1]}")))
        degrees = f"degree{'s' if known[-1] > 1 else ''} of freedom"
        freedom = f" (t with {df} {degrees}, pooled over the cells of one work)"
    end = f"± is half the 95 % interval over rounds{freedom}."
    if len(names) < 2:
        return f"speedup / N, against {shown_name(names[0]) if names else 'the plain loop'} on one device; {end}"
    return (
        f"speedup / N, against the plain loop of the same framework on one device ({', '.join(names)}); {end} "
        f"These baselines differ: compare frameworks by {labels.rates(analysis.rows)}, since a slow plain loop "
        "makes efficiency look good."
    )


_NODE_BATCH = "small batch, a device's part of a node's batch costs more than its part of the time"


def _breakdown(rows: Iterable[Row]) -> str:
    lost = [row for row in rows if row.breakdown is not None]
    causes = catalogue.causes(lost)
    texts = {cause.key: cause.explanation for cause in causes}
    late = {row.strategy.partition(":")[0] for row in lost if _lacks_steps(row)}
    if "straggling" in texts and late:
        why = "of windows, a lower bound, because single steps are not timed"
        texts["straggling"] += f" ({', '.join(sorted(late))}: {why})"
    if "small_batch" in texts and any(row.workload.batch_rule == "node" for row in lost):
        texts["small_batch"] = _NODE_BATCH
    shown = (quantities.cell(cause, row) for cause in causes for row in lost)
    noise = any(isinstance(cell, Quantity) and cell.is_noise for cell in shown)
    return "; ".join(texts.values()) + (" In parentheses: not significantly different from zero." if noise else "")


def _lacks_steps(row: Row) -> bool:
    """Whether single steps of an exchange's plain loop cannot be timed."""
    on = row.hardware.device
    is_late = on == "emulated" or on in frameworks.named(row.strategy).returns_early
    return is_late and row.synchronous and row.world_size > 1


# ---------------------------------------------------------------- comparison


COMPARISON_TITLE = "Comparison at each world size"
FRAMEWORKS = "Frameworks at each world size, by their fastest exchange"
APART = "asynchronous: ranked among themselves"


def comparisons(analysis: Analysis, context: Context, planned: int, notes: Notes) -> Iterator[Section]:
    """Yield tables of exchanges, then of frameworks, for each group of comparable rows. World sizes at which rows
    have no rival are left out. `planned`: rounds of a complete row."""
    groups: dict[int, dict[int, list[Row]]] = {}
    for row in analysis.rows:
        groups.setdefault(row.group, {}).setdefault(row.world_size, []).append(row)
    for group, sizes in groups.items():
        contests = [rivals for _, rivals in sorted(sizes.items()) if len(rivals) > 1]
        rows = [row for rivals in contests for row in rivals]
        details = _resolutions(analysis, group)
        alone = all(map(_are_alone, contests))
        ranked = [] if alone else [line for of in contests for line in _exchanges(of, context, planned, notes)]
        fastest = [line for rivals in contests for line in _frameworks(rivals, context)]
        tables: tuple[tuple[str, Table, list[Line], tuple[Detail, ...]], ...] = (
            (COMPARISON_TITLE, "comparison", ranked, details),
            (FRAMEWORKS, "frameworks", fastest, details if alone else ()),
        )
        for title, table, lines, below in tables:
            if lines:
                name = ", ".join((title, *labels.varying(rows[0], context)))
                columns = catalogue.columns(table, rows)
                yield Section(title=name, columns=columns, lines=tuple(lines), details=below)


def _are_alone(rivals: Sequence[Row]) -> bool:
    """Whether rivals are plain loops, each of another framework."""
    return all(row.is_plain for row in rivals) and len({row.framework for row in rivals}) == len(rivals)


def _exchanges(rivals: Sequence[Row], context: Context, planned: int, notes: Notes) -> Iterator[Line]:
    losses = [row.loss_at for row in rivals if row.synchronous and row.loss_at is not None]
    for row, above in _ranked(rivals, lambda row: (not catalogue.is_wrong(row), mean_rate(row))):
        line = _line(row, above, context, planned, notes)
        yield replace(line, remark="" if row.synchronous else _remark(row, losses))


def _line(row: Row, above: str, context: Context, planned: int, notes: Notes) -> Line:
    """Make a row's line with its notes; the first one names missing rounds of an interrupted run."""
    fewer = (f"{row.rounds_tried} of {planned} rounds measured",) if row.rounds_tried < planned else ()
    marks = notes.causes((*fewer, *row.footnotes))
    return quantities.line(row, labels.name(row, context), above=above, marks=marks)


def _frameworks(rivals: Sequence[Row], context: Context) -> Iterator[Line]:
    for row, above in _ranked([row for row in rivals if row.framework_standing], mean_rate):
        yield replace(quantities.line(row, labels.name(row, context), above=above), says="", flags=())


def _ranked(rows: Sequence[Row], key: Callable[[Row], Any]) -> Iterator[tuple[Row, str]]:
    """Yield rows by framework, the fastest first and asynchronous ones apart, with the text of the rule above."""
    for synchronous, apart in ((True, ""), (False, f", {APART}")):
        found = sorted((row for row in rows if row.synchronous == synchronous), key=key, reverse=True)
        place = {name: index for index, name in enumerate(dict.fromkeys(row.framework for row in found))}
        found.sort(key=lambda row: place[row.framework])
        yield from ((row, "" if index else f"N = {row.world_size}{apart}") for index, row in enumerate(found))


def _resolutions(analysis: Analysis, group: int) -> tuple[Detail, ...]:
    """Return `3 rounds detect  N=2 6.1 % (--rounds 8: 3.0 %)`: the smallest difference that is detected."""
    found: dict[str, list[str]] = {}
    for one in analysis.resolutions:
        if one.group == group:
            now, then = map(quantities.fraction, (one.smallest_difference, one.smallest_difference_then))
            label = f"{one.rounds} rounds detect{'' if one.synchronous else ', asynchronous'}"
            found.setdefault(label, []).append(f"N={one.world_size} {now} (--rounds {one.more_rounds}: {then})")
    return tuple((label, tuple(values)) for label, values in found.items())


def _loss(value: float) -> str:
    return text.fixed(value, 3)


def _remark(row: Row, losses: Sequence[float]) -> str:
    """Return `staleness 0.94, loss 1.20 after 3,840 images (synchronous: 1.1 to 1.2)`."""
    said = [] if row.staleness is None else [f"staleness {row.staleness:.2f}"]
    if row.loss_at is not None and row.loss_at_samples is not None:
        between = " to ".join(dict.fromkeys(_loss(end(losses)) for end in (min, max))) if losses else ""
        after = f"after {quantities.samples(row.loss_at_samples, row.workload)}"
        said.append(f"loss {_loss(row.loss_at)} {after}{f' (synchronous: {between})' if losses else ''}")
    return ", ".join(said)


# ---------------------------------------------------------------- curves


def by_curve(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the rows of each scaling curve, by world size."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.curve, []).append(row)
    return list(found.values())


def curves(
    rows: Sequence[Row], context: Context, planned: int, notes: Notes, known: Sequence[Row]
) -> Iterator[Section]:
    """Yield the table of each curve. `planned`: rounds of a complete row; `known`: all rows of the report."""
    stale = frozenset((row.group, row.world_size) for row in known if not row.synchronous and row.rounds)
    for of_curve in by_curve(rows):
        lines = []
        for row, before in zip(of_curve, (None, *of_curve[:-1]), strict=True):
            above = "several nodes" if row.nodes > 1 and before is not None and before.nodes == 1 else ""
            lines.append(_line(row, above, context, planned, notes))
        yield Section(
            title=labels.title(of_curve, context),
            columns=catalogue.columns("curve", of_curve),
            lines=tuple(lines),
            details=_details(of_curve, stale),
            is_curve=True,
        )


# ---------------------------------------------------------------- details of curves


MOST_SERVERS = 4
# Above this use of the CPU, the emulator's error is unknown (sweep/outcome.py warns there).
MOST_BUSY_PERCENT = 80
GIB = 1 << 30
# A device is named as slow if its clock is below this fraction of the mean.
SLOWER = 0.98


def _details(rows: Sequence[Row], stale: frozenset[tuple[int, int]]) -> tuple[Detail, ...]:
    """Return the lines below a curve's table, for values without a column. `stale`: groups and world sizes with an
    asynchronous row."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for label, said in (*_of_efficiency(row), *_of_training(row, stale), *_of_hardware(row)):
            found.setdefault(label, []).extend([f"N={row.world_size} {said}"] if said else [])
    return tuple((label, tuple(values)) for label, values in found.items() if values)


def _of_efficiency(row: Row) -> Iterator[Entry]:
    """Yield labels with what is said of a row, "" for nothing; all rows have the same labels."""
    claims, mean = not row.learnt_less, row.efficiency.mean if row.efficiency else None
    fraction = quantities.fraction
    speedup, own = quantities.speedup(row.speedup), quantities.percent(row.strategy_efficiency)
    # The table has no room for the interval.
    yield "speedup", f"{speedup}" if claims and speedup and row.speedup and row.speedup.df else ""
    soak = ""
    if row.lasting is not None and mean is not None and claims:
        change = row.lasting.change
        later = fraction(mean * (1 + change.mean), change.times(mean).plus(mean))
        soak = f"{later} after {row.lasting.after_s:.0f} s more"
    yield "soak", soak
    yield "against its own N=1", f"{own}" if own and row.world_size > 1 and claims else ""
    factors = ""
    if row.intra_node is not None and row.inter_node is not None and claims:
        factors = f"{fraction(row.intra_node)} x {fraction(row.inter_node)}"
    yield "intra-node x inter-node", factors
    cost = relative(row) if row.world_size > 1 else None
    yield "relative cost", text.fixed(cost.mean, 2) if cost else ""
    causes = ((cause.title, row.breakdown_intervals.get(cause.key)) for cause in catalogue.causes([row]))
    known = ((title, fraction(one.mean, one)) for title, one in causes if one and one.df)
    yield "loss by cause", ", ".join(f"{title} {percent}" for title, percent in known)
    yield "data wait", _data(row, row.data_wait) if row.data_wait else ""
    parts = row.exchange_cpu_parts.items()
    yield "exchange's CPU", ", ".join(f"{name} {fraction(part)}" for name, part in parts)


def _data(row: Row, found: DataWait) -> str:
    """Return `31.0 % of the step, 12.0 % of one device's alone; feeds alone 1,234 images/s; ...`."""
    of_step, of_alone = map(quantities.fraction, (found.of_step, found.of_alone))
    feed = quantities.rate(found.feed_samples_per_s, row.workload)
    said = [f"{of_step} of the step, {of_alone} of one device's alone"]
    said += [] if feed is None else [f"feeds alone {feed}"]
    said += [] if row.waited_s is None else [f"blocked in the feed {quantities.milliseconds(row.waited_s)} a step"]
    return "; ".join(said)


def _of_training(row: Row, stale: frozenset[tuple[int, int]]) -> Iterator[Entry]:
    first, last = row.first_loss, row.last_loss
    yield "training loss", "" if first is None or last is None else f"{_loss(first)} to {_loss(last)}"
    equal = ""
    if row.loss_at is not None and row.loss_at_samples is not None and (row.group, row.world_size) in stale:
        equal = f"{_loss(row.loss_at)} ({quantities.samples(row.loss_at_samples, row.workload)})"
    yield "loss at equal samples", equal
    yield "staleness, steps", "" if row.staleness is None else f"{row.staleness:.2f}"


def _of_hardware(row: Row) -> Iterator[Entry]:
    work, busy, traced = row.workload, row.machine_cpu_percent, row.traced
    yield "bytes between nodes", carried(row.receipt) if row.receipt else ""
    yield "NCCL", nccl_text(row.nccl) if row.nccl else ""
    yield "device", device(row.device_use, work) if row.device_use else ""
    yield "CPU and DRAM", _machine(row.machine_energy, work) if row.machine_energy else ""
    busiest = ""
    for path in row.paths[:1]:
        rate = quantities.bit_rate(path.bits_per_s)
        busiest = f"{path} {quantities.fraction(path.busy_share, digits=0)} busy at {rate}"
    yield "busiest path", busiest
    yield "CPU while emulating", "" if busy is None else f"{text.fixed(busy, 0)} {PERCENT}"
    yield "emulator's own error", _late(row, row.emulation) if row.emulation and row.world_size > 1 else ""
    yield "traced step", _traced_step(traced) if traced else ""
    yield "traced, on the GPU", _on_gpu(traced) if traced else ""
    yield "trace files", ", ".join(traced.files) if traced else ""
    yield "servers", _servers(row.server_use) if row.server_use else ""


def carried(receipt: Receipt) -> str:
    """Return `99.9 % on ib0 (0.1 % eth0), 1.04 x expected`. It is `0.53 to 1.00 x expected` if the library chooses
    the algorithm."""
    sent = receipt.sent_bytes
    total = sum(sent.values())
    others = [(card, of) for card, of in sent.items() if card not in receipt.wanted and total and len(sent) > 1]
    said = f"{quantities.fraction(receipt.share)} on {', '.join(receipt.wanted) or 'no card'}"
    if others:
        said += f" ({', '.join(f'{quantities.fraction(of / total)} {card}' for card, of in others)})"
    if receipt.over_expected is not None:
        low, high = (Quantity(value=end, digits=2) for end in receipt.over_expected)
        said += f", {quantities.low_to_high(low, high)} x expected"
    return said


def device(use: DeviceUse, work: Workload) -> str:
    """Return `SM 1,395 MHz (1,410 at most), 412 W, 98 % busy, 31.2 GiB, 0.432 J/image, 2.31 images/s/W`. `~` marks
    energy that was integrated from readings of power."""
    mean, slowest, highest = use.sm_clock_mhz, use.slowest_sm_clock_mhz, use.max_sm_clock_mhz
    said = []
    if mean is not None and slowest is not None and highest is not None:
        slow = f", the slowest {slowest:,.0f}" if slowest < SLOWER * mean else ""
        said.append(f"SM {mean:,.0f} MHz ({highest:,.0f} at most{slow})")
    if use.power_w is not None:
        said.append(f"{use.power_w:,.0f} W")
    if use.utilisation_percent is not None:
        said.append(f"{use.utilisation_percent:,.0f} % busy")
    if use.peak_memory_bytes is not None:
        said.append(f"{use.peak_memory_bytes / GIB:.1f} GiB")
    if use.j_per_sample:
        said.append(f"{'~' if use.energy_is_integral else ''}{_energy(use.j_per_sample, work)}")
    return ", ".join(said)


def _machine(use: MachineUse, work: Workload) -> str:
    """Return `182 W, 0.36 J/image, 2.78 images/s/W`; `-` if the counters cannot be read."""
    if use.power_w is None or not use.j_per_sample:
        return "-"
    return f"{use.power_w:,.0f} W, {_energy(use.j_per_sample, work)}"


def _energy(j_per_sample: float, work: Workload) -> str:
    """Return the energy of one image or token, and its inverse, with three digits."""
    of_one = j_per_sample / work.units_per_sample
    joules, rate = (text.fixed(one, max(0, 2 - floor(log10(one)))) for one in (of_one, 1 / of_one))
    return f"{joules} J/{work.unit.removesuffix('s')}, {rate} {work.unit}/s/W"


def error_is_unknown(row: Row) -> bool:
    """Whether the emulator's own error is unknown: on a busy machine, or where no bound holds."""
    if row.world_size == 1 or row.emulation is None:
        return False
    return row.emulation.error_fraction is None or (row.machine_cpu_percent or 0.0) > MOST_BUSY_PERCENT


def _late(row: Row, found: Emulation) -> str:
    """Return `up to 0.5 % (last bucket 6.5 ms, on the links 3.4 ms)`; unknown on a busy machine."""
    if found.error_fraction is None:
        return "unknown: the bound is for DDP's default buckets over a ring"
    if error_is_unknown(row):
        return "unknown, the machine was busy"
    on_links = f", on the links {quantities.milliseconds(found.wire_s)}" if found.wire_s else ""
    took = quantities.milliseconds(found.tail_s)
    return f"up to {quantities.fraction(found.error_fraction)} (last bucket {took}{on_links})"


def _traced_step(traced: Traced) -> str:
    if traced.step_s is None:
        return "not of all ranks"
    return f"{quantities.milliseconds(traced.step_s)}, untraced {quantities.milliseconds(traced.untraced_s)}"


def _on_gpu(traced: Traced) -> str:
    """Return `computing 35.1 ms, slowed 1.2 ms, ...`; fractions if the profiler slowed the step."""
    if (of := traced.gpu) is None:
        return ""
    parts = {
        "computing": of.compute_s, "slowed": of.slowed_s, "other kernels": of.other_s, "transfer": of.transfer_s,
        "waiting": of.waiting_s, "idle": of.idle_s, "host": of.host_s,
    }  # fmt: skip
    known = {name: seconds for name, seconds in parts.items() if seconds is not None}
    whole_s = sum(known.values())
    said = (
        (name, quantities.milliseconds(one) if traced.is_faithful else quantities.fraction(one / whole_s))
        for name, one in known.items()
    )
    return ", ".join(f"{name} {size}" for name, size in said)


def _servers(used: Sequence[ServerUse]) -> str:
    if len(used) <= MOST_SERVERS:
        return "; ".join(dict.fromkeys(f"{one.name} on {one.host}{_of_a_core([one])}" for one in used))
    hosts = list(dict.fromkeys(one.host for one in used))
    return f"{counted(len(used), 'server')} on {several(hosts)}{_of_a_core(used)}"


def _of_a_core(used: Iterable[ServerUse]) -> str:
    known = sorted(one.cpu_percent for one in used if one.cpu_percent is not None)
    if not known:
        return ""
    low, high = (text.fixed(end, 0) for end in (known[0], known[-1]))
    return f", {' to '.join(dict.fromkeys((low, high)))} {PERCENT} of a core"


# ---------------------------------------------------------------- baselines


WHAT = Column(key="what", title="what", is_text=True)
BATCH = Column(key="batch", title="batch")
SHARE = Column(key="efficiency", title="efficiency", unit_in_cells=True)


def baselines(analysis: Analysis, context: Context, notes: Notes, *, compares: bool) -> Iterator[Section]:
    """Yield a table per unit of samples: plain loops, and single ranks of strategies. A comparison already has
    the single ranks at N = 1."""
    by_unit: dict[Unit, list[Line]] = {}
    references = {(_alone(row.workload.reference(row.world_size)), row.hardware) for row in analysis.rows}
    is_of_several = len({measured.strategy for measured in analysis.baselines}) > 1
    conditions = [labels.conditions(one) for one in analysis.baselines]
    varying = [index for index, values in enumerate(zip(*conditions, strict=True)) if len(set(values)) > 1]
    for measured, values in zip(analysis.baselines, conditions, strict=True):
        is_whole = (_alone(measured.workload), measured.hardware) in references and measured.samples_per_s
        of = f" for {measured.strategy.partition(':')[0]}" if is_of_several else ""
        name = ", ".join((shown_name(measured.strategy), *(values[index] for index in varying), "one device"))
        line = _baseline(measured, name, f"= 100 %{of}" if is_whole else "", notes.causes(measured.footnotes))
        by_unit.setdefault(measured.workload.unit, []).append(line)
    for row in () if compares else analysis.rows:
        if row.world_size == 1 and row.samples_per_s is not None and not row.is_plain:
            line = _baseline(
                row, f"{labels.title([row], context)}, one rank", quantities.percent(row.efficiency) or ""
            )
            by_unit.setdefault(row.workload.unit, []).append(line)
    for unit, lines in by_unit.items():
        columns = (WHAT, BATCH, catalogue.RATE.of_unit(unit), SHARE)
        yield Section(title=f"Baselines, {unit}/s", columns=columns, lines=tuple(lines), is_baselines=True)


def _alone(work: Workload) -> Workload:
    return work.alone(work.batch_size)


def _baseline(measured: Row | Baseline, name: str, share: Quantity | str, marks: tuple[int, ...] = ()) -> Line:
    """Make a line; `share`: its efficiency, or a text if this is the 100 % of others."""
    failure = "failed" if measured.failed is None else quantities.outcome(measured.failed)
    return Line(
        cells={
            WHAT.key: name,
            BATCH.key: f"batch {measured.workload.batch_size}",
            catalogue.RATE.key: quantities.rate(measured.samples_per_s, measured.workload) or failure,
            SHARE.key: share,
        },
        flags=("EMULATED",) if measured.hardware.profile else (),
        marks=marks,
    )
