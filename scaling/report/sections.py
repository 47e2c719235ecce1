"""The tables of trainings, costs, GPUs over the CPU, and minibatches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor, log10

from msgspec.structs import replace

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import accuracy, catalogue
from scaling.analysis.table.cost import Bill, Pricing, bill, knee
from scaling.analysis.table.rows import PERCENT, Baseline, Column, Minibatch, OverCpu, Row, Training
from scaling.records.run import Header
from scaling.report import labels, quantities
from scaling.report.curves import by_curve
from scaling.report.labels import Context
from scaling.report.notes import Notes, shortened
from scaling.report.parts import Cell, Detail, Line, Phrase, Quantity, Section, Value
from scaling.text import counted

# ---------------------------------------------------------------- trainings


TRAINING = "Training to an accuracy"
CONFUSION = "Confusion"
# With more epochs, evenly spaced ones are shown, the first and the last among them.
MOST_EPOCHS = 8
MOST_CLASSES = 12
BATCH = Column(key="update_samples", title="batch")
LEARNING_RATE = Column(key="lr", title="rate")
RULE = Column(key="lr_scale", title="rule", is_text=True)
TOP1 = "held-out top-1, %, by epoch"
SECONDS = Column(key="train_s", title="trained, s")
EVALUATION = Column(key="evaluate_s", title="eval., s")
TARGET = Column(key="target_s", title="to target, s")


def trainings(found: Sequence[Training], context: Context, notes: Notes) -> tuple[Section, ...]:
    """Return a table per strategy, then the confusion of the best training of its largest world size."""
    by_title: dict[str, list[Training]] = {}
    for one in found:
        by_title.setdefault(_training_title(one, found, context), []).append(one)
    tables = [_training_section(title, of, notes) for title, of in by_title.items()]
    confused = [_confusion(name, one) for name, one in accuracy.best(found).items() if _is_shown(one)]
    return (*tables, *confused)


def _training_title(one: Training, found: Sequence[Training], context: Context) -> str:
    said = [_training_work(each) for each in found]
    varying = (here for here, *others in zip(_training_work(one), *said, strict=True) if len(set(others)) > 1)
    return f"{TRAINING}: {', '.join((labels.exchange(one.contender, context.shared), *varying))}"


def _training_work(one: Training) -> tuple[str, ...]:
    work, regime = one.workload, one.regime
    model, data, size, _ = labels.what(work)
    return (
        model, data, size, one.hardware.label, work.precision, work.memory_format, regime.optimizer,
        f"{regime.train_samples:,} samples" if regime.train_samples else "all samples",
        f"{regime.test_samples:,} held out" if regime.test_samples else "all held out",
        f"from {regime.weights}" if regime.weights else "from drawn weights",
        counted(regime.epochs, "epoch"), f"{regime.augment_epochs} of them augmented",
        f"{regime.warmup_epochs} of warm-up", f"rate falls at {', '.join(map(str, regime.lr_steps)) or 'none'}",
    )  # fmt: skip


def _training_section(title: str, found: Sequence[Training], notes: Notes) -> Section:
    shown = _epochs(max(one.regime.epochs for one in found))
    aims = any(one.regime.target_top1 is not None for one in found)
    top1 = tuple(Column(key=f"top1_{number}", title=str(number + 1), group=TOP1) for number in shown)
    timed = (SECONDS, TARGET, EVALUATION) if aims else (SECONDS, EVALUATION)
    rate = catalogue.RATE.of_unit(found[0].workload.unit)
    return Section(
        title=title,
        columns=(catalogue.WORLD_SIZE, BATCH, LEARNING_RATE, RULE, *top1, *timed, rate),
        lines=tuple(_training_line(one, shown, notes) for one in found),
    )


def _epochs(count: int) -> tuple[int, ...]:
    if count <= MOST_EPOCHS:
        return tuple(range(count))
    return tuple(sorted({round(place * (count - 1) / (MOST_EPOCHS - 1)) for place in range(MOST_EPOCHS)}))


def _training_line(one: Training, shown: Sequence[int], notes: Notes) -> Line:
    found: dict[str, Cell] = {
        catalogue.WORLD_SIZE.key: quantities.integer(one.world_size),
        BATCH.key: quantities.integer(one.update_samples),
        LEARNING_RATE.key: f"{one.regime.rate:.4g}",
        RULE.key: one.regime.lr_scale,
    }
    if not one.seeds and one.failed is not None:
        diverged = one.failed.cause == "nan-loss"
        says = "diverged: the loss is not a number" if diverged else quantities.outcome(one.failed)
        return Line(cells=found, says=says, flags=one.flags, marks=notes.marks(_training_failures(one)))
    for number in shown:
        found[f"top1_{number}"] = _at(one, number)
    found |= {
        SECONDS.key: _seconds(one.train_s),
        TARGET.key: _seconds(one.target_s),
        EVALUATION.key: _seconds(one.evaluate_s),
        catalogue.RATE.key: quantities.rate(_alone(one.samples_per_s), one.workload),
    }
    return Line(cells=found, flags=one.flags, remark=_learns_less(one), marks=notes.marks(_training_notes(one)))


def _alone(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(mean=value, low=None, high=None, n=1)


def _at(one: Training, number: int) -> Quantity | None:
    """Return top-1 in percent after an epoch; None if the training ended earlier."""
    if number >= len(one.top1):
        return None
    return Quantity(value=100 * one.top1[number], digits=1)


def _seconds(value: float | None) -> Quantity | None:
    return None if value is None else Quantity(value=value, digits=2 if value < 10 else 1 if value < 100 else 0)


def _learns_less(one: Training) -> Phrase:
    if one.less_than_samples is None:
        return ()
    return (f"learns less than batch {one.less_than_samples}",)


# ---------------------------------------------------------------- footnotes of trainings


def _training_failures(one: Training) -> tuple[str, ...]:
    return () if one.failed is None else (shortened(f"{one.failed.cause}: {one.failed.message}"),)


def _training_notes(one: Training) -> tuple[str, ...]:
    return tuple(filter(None, (*_training_failures(one), _of_seeds(one), _of_target(one), *one.warnings)))


def _of_seeds(one: Training) -> str:
    if len(one.seeds) < 2:
        return ""
    last = (
        f"seed {seed} {100 * curve[-1]:.1f} %"
        for seed, curve in zip(one.seeds, one.top1_by_seed, strict=True)
        if curve
    )
    return f"N={one.world_size}, batch {one.update_samples}, rate {one.regime.rate:.4g}: {', '.join(last)}"


def _of_target(one: Training) -> str:
    target = one.regime.target_top1
    if target is None:
        return ""
    goal = f"{100 * target:g} %"
    if not one.reached:
        return f"{goal} was not reached in {counted(one.regime.epochs, 'epoch')}"
    if len(one.seeds) == 1:
        return (
            f"seconds to {goal} are of one seed; another seed may need several epochs more or less; use "
            "--seeds 0,1,2"
        )
    if one.reached < len(one.seeds):
        return f"{goal} was reached by {one.reached} of {len(one.seeds)} seeds: the seconds are their mean"
    return ""


# ---------------------------------------------------------------- confusion


def _is_shown(one: Training) -> bool:
    return 0 < len(one.confusion) <= MOST_CLASSES


def _confusion(name: str, one: Training) -> Section:
    taken = tuple(
        Column(key=f"as_{number}", title=str(number), group="taken for") for number in range(len(one.confusion))
    )
    label = Column(key="class", title="class", is_text=True)
    lines = tuple(
        Line(cells={label.key: str(number), **{f"as_{at}": _count(count) for at, count in enumerate(row)}})
        for number, row in enumerate(one.confusion)
    )
    seeds = f", {counted(len(one.seeds), 'seed')} in all" if len(one.seeds) > 1 else ""
    title = (
        f"{CONFUSION}: {name} N={one.world_size}, batch {one.update_samples}, rate {one.regime.rate:.4g}{seeds}"
    )
    return Section(title=title, columns=(label, *taken), lines=lines)


def _count(count: int) -> Cell:
    return replace(quantities.integer(count), grouped=True) if count else "."


# ---------------------------------------------------------------- costs


MACHINES = Column(key="machines", title="machines", is_text=True)
RELATIVE = Column(key="cost_relative", title="x plain loop")
SAME_PRICE = "all devices at one price"
EXCLUDED = "without storage, transfers, and the start of machines"


def costs(
    rows: Sequence[Row], header: Header, context: Context, pricing: Pricing, notes: Notes
) -> tuple[Section, ...]:
    return tuple(_cost_table(of_curve, header, context, pricing, notes) for of_curve in by_curve(rows))


def _cost_table(rows: Sequence[Row], header: Header, context: Context, pricing: Pricing, notes: Notes) -> Section:
    bills = [bill(row, header, pricing) for row in rows]
    emulated = ", of the emulated cluster" if rows[0].hardware.profile else ""
    unit = rows[0].workload.unit
    known = [one for one in bills if isinstance(one, Bill)]
    relative = replace(RELATIVE, title=f"x {pricing.base.name}") if pricing.base else RELATIVE
    machines = (MACHINES, *_cost_columns(known, unit)) if pricing.prices else ()
    return Section(
        title=f"Cost of {labels.title(rows, context)}, {pricing.currency or SAME_PRICE}{emulated}",
        columns=(catalogue.WORLD_SIZE, *machines, relative),
        lines=tuple(_cost_line(row, of, notes) for row, of in zip(rows, bills, strict=True)),
        details=tuple(_knee(rows, header, pricing)),
        group=rows[0].group,
    )


def _cost_columns(bills: Sequence[Bill], unit: str) -> tuple[Column, ...]:
    millions = dict.fromkeys(how for one in bills for how in one.per_million)
    epochs = dict.fromkeys(how for one in bills for how in one.per_epoch)
    return (
        *(_cost_column("million", how, f"1e6 {unit}", first=how == next(iter(millions))) for how in millions),
        *(_cost_column("epoch", how, "an epoch", first=False) for how in epochs),
    )


def _cost_column(what: str, how: str, title: str, *, first: bool) -> Column:
    return Column(key=f"{what}_{how}", title=how.replace("_", " "), group=title, shows_interval=first)


def _cost_line(row: Row, of: Bill | str, notes: Notes) -> Line:
    found: dict[str, Cell] = {catalogue.WORLD_SIZE.key: quantities.integer(row.world_size)}
    if isinstance(of, str):
        return Line(cells=found, says=of, flags=row.flags)
    found[MACHINES.key] = f"{of.machines} x {of.price}" if of.price else None
    # The bill counts samples, the table counts the units of rates: tokens for sequences.
    of_units = 1 / row.workload.units_per_sample
    found |= {f"million_{how}": _money(one.times(of_units)) for how, one in of.per_million.items()}
    found |= {f"epoch_{how}": _money(one) for how, one in of.per_epoch.items()}
    found[RELATIVE.key] = quantities.speedup(of.relative)
    return Line(cells=found, flags=row.flags, marks=notes.marks(_cost_notes(row, of)))


def _cost_notes(row: Row, of: Bill) -> tuple[str, ...]:
    count = row.world_size
    unused = (
        f"{of.devices_paid} devices are paid for, {count} used" if of.price and count < of.devices_paid else ""
    )
    old = f"{of.price}: price of {of.price_is_old}" if of.price_is_old else ""
    excluded = f"cost: {EXCLUDED}" if of.price else ""
    return tuple(filter(None, (unused, old, excluded)))


def _money(of: Estimate) -> Quantity:
    """Round to three digits, and at least to cents."""
    digits = max(2, 2 - floor(log10(of.mean))) if of.mean > 0 else 2
    return Quantity(value=of.mean, low=of.low, high=of.high, digits=digits, grouped=True)


def _knee(rows: Sequence[Row], header: Header, pricing: Pricing) -> list[Detail]:
    found = knee(rows, header, pricing)
    if found is None:
        return []
    said = f"up to here added samples cost at most {pricing.knee:g} times the mean"
    return [Detail(label="knee", values=(Value(world_size=found, phrase=(said,)),))]


# ---------------------------------------------------------------- GPUs over the CPU


OVER_CPU = "GPUs over the CPU"
PRECISION = Column(key="precision", title="precision", is_text=True)
RATIO = Column(key="over_cpu", title="x the CPU")


def over_cpu(found: Sequence[OverCpu], context: Context, notes: Notes) -> tuple[Section, ...]:
    """Return a table per CPU and framework: the CPU, then one GPU alone, then exchanges by world size."""
    by_cpu: dict[str, list[OverCpu]] = {}
    for one in found:
        by_cpu.setdefault(_over_cpu_title(one.cpu, found), []).append(one)
    return tuple(_over_cpu_section(title, of, context, notes) for title, of in by_cpu.items())


def _over_cpu_title(cpu: Baseline, found: Sequence[OverCpu]) -> str:
    several = len({one.cpu.workload.batch_size for one in found}) > 1
    batch = f", batch {cpu.workload.batch_size}" if several else ""
    passes = "" if cpu.workload.trains else f", {labels.PASSES[cpu.workload.pass_]}"
    return f"{OVER_CPU}: {cpu.strategy.partition(':')[0]}{passes}{batch}"


def _over_cpu_section(title: str, found: Sequence[OverCpu], context: Context, notes: Notes) -> Section:
    ordered = sorted(found, key=lambda one: (not one.alone, one.contender.strategy, one.world_size))
    unit = found[0].workload.unit
    return Section(
        title=title,
        columns=(catalogue.NAME, catalogue.WORLD_SIZE, PRECISION, catalogue.RATE.of_unit(unit), RATIO),
        lines=(_cpu_line(found[0].cpu, notes), *(_over_cpu_line(one, context, notes) for one in ordered)),
    )


def _cpu_line(cpu: Baseline, notes: Notes) -> Line:
    cells_: dict[str, Cell] = {
        catalogue.NAME.key: cpu.hardware.label,
        catalogue.WORLD_SIZE.key: None,
        PRECISION.key: cpu.workload.precision,
    }
    marks = notes.causes(cpu.footnotes)
    if cpu.failed is not None:
        return Line(cells=cells_, says=quantities.outcome(cpu.failed), flags=("FAILED",), marks=marks)
    rate = quantities.rate(cpu.samples_per_s, cpu.workload)
    return Line(cells={**cells_, catalogue.RATE.key: rate, RATIO.key: Quantity(value=1, digits=2)}, marks=marks)


def _over_cpu_line(one: OverCpu, context: Context, notes: Notes) -> Line:
    name = f"{one.contender.strategy}, alone" if one.alone else labels.exchange(one.contender, context.shared)
    cells_: dict[str, Cell] = {
        catalogue.NAME.key: name,
        catalogue.WORLD_SIZE.key: quantities.integer(one.world_size),
        PRECISION.key: one.workload.precision,
    }
    marks = notes.causes(one.footnotes)
    if one.failed is not None:
        return Line(cells=cells_, says=quantities.outcome(one.failed), flags=("FAILED",), marks=marks)
    rate = quantities.rate(one.samples_per_s, one.workload)
    ratio = None if one.ratio is None else quantities.speedup(one.ratio)
    return Line(cells={**cells_, catalogue.RATE.key: rate, RATIO.key: ratio}, marks=marks)


# ---------------------------------------------------------------- minibatches


TITLE = "Minibatches"
STEP = Column(key="step_ms", title="ms", unit="ms")
EFFICIENCY = Column(key="minibatch_efficiency", title="minibatch efficiency", unit=PERCENT, unit_in_cells=True)
OVER_SMALLER = Column(key="over_smaller", title="x the smaller's time")


def minibatches(found: Sequence[Minibatch], context: Context, notes: Notes) -> tuple[Section, ...]:
    """Return a table per strategy and device: passes and world sizes, each by batch size."""
    by_title: dict[str, list[Minibatch]] = {}
    for one in found:
        by_title.setdefault(_title(one, found, context), []).append(one)
    return tuple(_section(title, of, notes) for title, of in by_title.items())


def _title(one: Minibatch, found: Sequence[Minibatch], context: Context) -> str:
    said = [_conditions(each) for each in found]
    varying = (here for here, *others in zip(_conditions(one), *said, strict=True) if len(set(others)) > 1)
    who = one.contender
    name = f"{who.strategy}, one device alone" if one.alone else labels.exchange(who, context.shared)
    placements = {each.placement for each in found if not each.alone}
    placed = (one.placement,) if len(placements) > 1 and not one.alone else ()
    return f"{TITLE}: {', '.join((name, *varying, *placed))}"


def _conditions(one: Minibatch) -> tuple[str, ...]:
    work = one.workload
    compiled = "compiled" if work.compile else "eager"
    return (*labels.what(work), one.hardware.label, work.precision, work.memory_format, compiled)


def _section(title: str, sweep: Sequence[Minibatch], notes: Notes) -> Section:
    sized = len({one.workload.batch_size for one in sweep}) > 1
    unit = sweep[0].workload.unit
    return Section(
        title=title,
        columns=(
            catalogue.BATCH_SIZE,
            STEP,
            catalogue.RATE.of_unit(unit),
            *((EFFICIENCY, OVER_SMALLER) if sized else ()),
        ),
        lines=tuple(_lines(sweep, notes)),
    )


def _lines(sweep: Sequence[Minibatch], notes: Notes) -> Iterator[Line]:
    before = ""
    for one in sweep:
        above = _above(one, sweep)
        yield _line(one, above if above != before else "", notes.causes(one.footnotes))
        before = above


def _above(one: Minibatch, sweep: Sequence[Minibatch]) -> str:
    passes = labels.PASSES[one.workload.pass_] if any(not each.workload.trains for each in sweep) else ""
    size = f"N = {one.world_size}" if any(each.world_size > 1 for each in sweep) else ""
    return ", ".join(filter(None, (passes, size)))


def _line(one: Minibatch, above: str, marks: tuple[int, ...]) -> Line:
    found: dict[str, Cell] = {catalogue.BATCH_SIZE.key: quantities.integer(one.workload.batch_size)}
    if one.failed is not None:
        return Line(cells=found, says=quantities.outcome(one.failed), flags=("FAILED",), above=above, marks=marks)
    found |= _measured(one)
    return Line(cells=found, says=_withheld(one), flags=_flags(one), remark=_remark(one), above=above, marks=marks)


def _measured(one: Minibatch) -> dict[str, Cell]:
    found: dict[str, Cell] = {
        STEP.key: None if one.step_s is None else quantities.milliseconds_of(one.step_s),
        catalogue.RATE.key: quantities.rate(one.samples_per_s, one.workload),
    }
    if not _withheld(one):
        found[EFFICIENCY.key] = quantities.percent(one.efficiency)
        found[OVER_SMALLER.key] = quantities.speedup(one.over_smaller)
    return found


def _withheld(one: Minibatch) -> str:
    """Return the unranked mark, which is printed in the place of ratios; "" without one."""
    return next(iter(one.flags), "")


def _flags(one: Minibatch) -> tuple[str, ...]:
    return (*(("EMULATED",) if one.hardware.profile else ()), *one.flags)


def _remark(one: Minibatch) -> Phrase:
    if not one.is_worse or one.linear is None:
        return ()
    return (f"more than {one.linear:.3g} x as long as {one.smaller_batch_size}",)
