"""The tables of trainings, costs, GPUs over the CPU, minibatches, and of a run over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import floor, log10
from typing import TypeVar

from msgspec.structs import replace

from scaling import frameworks
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import accuracy, catalogue
from scaling.analysis.table.burn_in import OverTime, StepTimes
from scaling.analysis.table.cost import Bill, Pricing, bill, knee
from scaling.analysis.table.rows import PERCENT, Baseline, Column, Minibatch, OverCpu, Row, Training
from scaling.records.run import Header
from scaling.report import labels, quantities
from scaling.report.document import by_curve
from scaling.report.labels import Context
from scaling.report.notes import Notes, shortened
from scaling.report.parts import Cell, Line, Quantity, Section
from scaling.text import counted, duration

T = TypeVar("T")
WORLD_SIZE = catalogue.WORLD_SIZE


def _by_title(found: Sequence[T], title: Callable[[T], str]) -> dict[str, list[T]]:
    groups: dict[str, list[T]] = {}
    for one in found:
        groups.setdefault(title(one), []).append(one)
    return groups


def _differing(of: Sequence[str], all_of: Sequence[Sequence[str]]) -> list[str]:
    """Return the conditions that are not the same for all."""
    return [one for one, *others in zip(of, *all_of, strict=True) if len(set(others)) > 1]


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


def trainings(found: Sequence[Training], context: Context, notes: Notes) -> Iterator[Section]:
    """Yield a table per strategy, then the confusion of the best training of its largest world size."""
    said = list(map(_training_work, found))

    def title(one: Training) -> str:
        name = labels.exchange(one.contender, context.shared)
        return f"{TRAINING}: {', '.join((name, *_differing(_training_work(one), said)))}"

    for name, of in _by_title(found, title).items():
        count = max(one.regime.epochs for one in of)
        spaced = {round(place * (count - 1) / (MOST_EPOCHS - 1)) for place in range(MOST_EPOCHS)}
        shown = range(count) if count <= MOST_EPOCHS else sorted(spaced)
        top1 = (Column(key=f"top1_{number}", title=str(number + 1), group=TOP1) for number in shown)
        aims = (TARGET,) if any(one.regime.target_top1 is not None for one in of) else ()
        rate = catalogue.RATE.of_unit(of[0].workload.unit)
        columns = (WORLD_SIZE, BATCH, LEARNING_RATE, RULE, *top1, SECONDS, *aims, EVALUATION, rate)
        lines = tuple(_training_line(one, shown, notes) for one in of)
        yield Section(title=name, columns=columns, lines=lines)
    for name, one in accuracy.best(found).items():
        if 0 < len(one.confusion) <= MOST_CLASSES:
            yield _confusion(name, one)


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


def _training_line(one: Training, shown: Sequence[int], notes: Notes) -> Line:
    found: dict[str, Cell] = {
        WORLD_SIZE.key: quantities.integer(one.world_size),
        BATCH.key: quantities.integer(one.update_samples),
        LEARNING_RATE.key: f"{one.regime.rate:.4g}",
        RULE.key: one.regime.lr_scale,
    }
    failures = [shortened(f"{one.failed.cause}: {one.failed.message}")] if one.failed else []
    if not one.seeds and one.failed is not None:
        diverged = one.failed.cause == "nan-loss"
        says = "diverged: the loss is not a number" if diverged else quantities.outcome(one.failed)
        return Line(cells=found, says=says, flags=one.flags, marks=notes.marks(failures))
    top1 = [Quantity(value=100 * value, digits=1) for value in one.top1]  # the training may have ended earlier
    found |= {f"top1_{number}": top1[number] if number < len(top1) else None for number in shown}
    found |= {column.key: _seconds(getattr(one, column.key)) for column in (SECONDS, TARGET, EVALUATION)}
    found[catalogue.RATE.key] = quantities.rate(one.samples_per_s, one.workload)
    less = "" if one.less_than_samples is None else f"learns less than batch {one.less_than_samples}"
    said = notes.marks(filter(None, (*failures, _of_seeds(one), _of_target(one), *one.warnings)))
    return Line(cells=found, flags=one.flags, remark=less, marks=said)


def _seconds(value: float | None) -> Quantity | None:
    return None if value is None else Quantity(value=value, digits=2 if value < 10 else 1 if value < 100 else 0)


def _of_seeds(one: Training) -> str:
    if len(one.seeds) < 2:
        return ""
    curves = zip(one.seeds, one.top1_by_seed, strict=True)
    last = (f"seed {seed} {100 * curve[-1]:.1f} %" for seed, curve in curves if curve)
    return f"N={one.world_size}, batch {one.update_samples}, rate {one.regime.rate:.4g}: {', '.join(last)}"


def _of_target(one: Training) -> str:
    target = one.regime.target_top1
    if target is None:
        return ""
    goal = f"{100 * target:g} %"
    if not one.reached:
        return f"{goal} was not reached in {counted(one.regime.epochs, 'epoch')}"
    if len(one.seeds) == 1:
        more = "another seed may need several epochs more or less; use --seeds 0,1,2"
        return f"seconds to {goal} are of one seed; {more}"
    if one.reached < len(one.seeds):
        return f"{goal} was reached by {one.reached} of {len(one.seeds)} seeds: the seconds are their mean"
    return ""


def _confusion(name: str, one: Training) -> Section:
    label = Column(key="class", title="class", is_text=True)
    taken = [Column(key=f"as_{at}", title=str(at), group="taken for") for at in range(len(one.confusion))]
    lines = []
    for number, row in enumerate(one.confusion):
        counts = (Quantity(value=count, digits=0, grouped=True) if count else "." for count in row)
        lines.append(Line(cells={label.key: str(number), **{f"as_{at}": one for at, one in enumerate(counts)}}))
    seeds = f", {counted(len(one.seeds), 'seed')} in all" if len(one.seeds) > 1 else ""
    of = f"{name} N={one.world_size}, batch {one.update_samples}, rate {one.regime.rate:.4g}{seeds}"
    return Section(title=f"{CONFUSION}: {of}", columns=(label, *taken), lines=tuple(lines))


# ---------------------------------------------------------------- costs


MACHINES = Column(key="machines", title="machines", is_text=True)
RELATIVE = Column(key="cost_relative", title="x plain loop")
SAME_PRICE = "all devices at one price"
EXCLUDED = "without storage, transfers, and the start of machines"


def costs(
    rows: Sequence[Row], header: Header, context: Context, pricing: Pricing, notes: Notes
) -> Iterator[Section]:
    relative = replace(RELATIVE, title=f"x {pricing.base.name}") if pricing.base else RELATIVE
    for of in by_curve(rows):
        bills = [bill(row, header, pricing) for row in of]
        emulated = ", of the emulated cluster" if of[0].hardware.profile else ""
        known = [one for one in bills if isinstance(one, Bill)]
        machines = (MACHINES, *_cost_columns(known, of[0].workload.unit)) if pricing.prices else ()
        end = knee(of, header, pricing)
        said = f"N={end} up to here added samples cost at most {pricing.knee:g} times the mean"
        yield Section(
            title=f"Cost of {labels.title(of, context)}, {pricing.currency or SAME_PRICE}{emulated}",
            columns=(WORLD_SIZE, *machines, relative),
            lines=tuple(_cost_line(row, one, notes) for row, one in zip(of, bills, strict=True)),
            details=() if end is None else (("knee", (said,)),),
        )


def _cost_columns(bills: Sequence[Bill], unit: str) -> Iterator[Column]:
    """Yield a column per price, of a million samples and of an epoch; the first one has intervals."""
    millions = [("million", f"1e6 {unit}", how) for one in bills for how in one.per_million]
    epochs = [("epoch", "an epoch", how) for one in bills for how in one.per_epoch]
    for what, title, how in dict.fromkeys((*millions, *epochs)):
        first = (what, title, how) == (*millions, None)[0]
        yield Column(key=f"{what}_{how}", title=how.replace("_", " "), group=title, shows_interval=first)


def _cost_line(row: Row, of: Bill | str, notes: Notes) -> Line:
    found: dict[str, Cell] = {WORLD_SIZE.key: quantities.integer(row.world_size)}
    if isinstance(of, str):
        return Line(cells=found, says=of, flags=row.flags)
    found[MACHINES.key] = f"{of.machines} x {of.price}" if of.price else None
    # The bill counts samples, the table counts the units of rates: tokens for sequences.
    of_units = 1 / row.workload.units_per_sample
    found |= {f"million_{how}": _money(one.times(of_units)) for how, one in of.per_million.items()}
    found |= {f"epoch_{how}": _money(one) for how, one in of.per_epoch.items()}
    found[RELATIVE.key] = quantities.speedup(of.relative)
    said = []
    if of.price and row.world_size < of.devices_paid:
        said.append(f"{of.devices_paid} devices are paid for, {row.world_size} used")
    said += [f"{of.price}: price of {of.price_is_old}"] if of.price_is_old else []
    said += [f"cost: {EXCLUDED}"] if of.price else []
    return Line(cells=found, flags=row.flags, marks=notes.marks(said))


def _money(of: Estimate) -> Quantity:
    """Round to three digits, and at least to cents."""
    digits = max(2, 2 - floor(log10(of.mean))) if of.mean > 0 else 2
    return Quantity(value=of.mean, low=of.low, high=of.high, digits=digits, grouped=True)


# ---------------------------------------------------------------- GPUs over the CPU


OVER_CPU = "GPUs over the CPU"
PRECISION = Column(key="precision", title="precision", is_text=True)
RATIO = Column(key="over_cpu", title="x the CPU")


def over_cpu(found: Sequence[OverCpu], context: Context, notes: Notes) -> Iterator[Section]:
    """Yield a table per CPU and framework: the CPU, then one GPU alone, then exchanges by world size."""
    several = len({one.cpu.workload.batch_size for one in found}) > 1

    def title(one: OverCpu) -> str:
        work = one.cpu.workload
        batch = f", batch {work.batch_size}" if several else ""
        passes = "" if work.trains else f", {labels.PASSES[work.pass_]}"
        return f"{OVER_CPU}: {one.cpu.strategy.partition(':')[0]}{passes}{batch}"

    for name, of in _by_title(found, title).items():
        rate, cpu = catalogue.RATE.of_unit(of[0].workload.unit), of[0].cpu
        lines = [_over_cpu_line(cpu.hardware.label, None, cpu, Quantity(value=1, digits=2), notes)]
        for one in sorted(of, key=lambda one: (not one.alone, one.contender.strategy, one.world_size)):
            exchange = labels.exchange(one.contender, context.shared)
            called = f"{one.contender.strategy}, alone" if one.alone else exchange
            size = quantities.integer(one.world_size)
            lines.append(_over_cpu_line(called, size, one, quantities.speedup(one.ratio), notes))
        yield Section(title=name, columns=(catalogue.NAME, WORLD_SIZE, PRECISION, rate, RATIO), lines=tuple(lines))


def _over_cpu_line(name: str, size: Cell, of: Baseline | OverCpu, ratio: Cell, notes: Notes) -> Line:
    cells: dict[str, Cell] = {
        catalogue.NAME.key: name, WORLD_SIZE.key: size, PRECISION.key: of.workload.precision,
    }  # fmt: skip
    marks = notes.causes(of.footnotes)
    if of.failed is not None:
        return Line(cells=cells, says=quantities.outcome(of.failed), flags=("FAILED",), marks=marks)
    rate = quantities.rate(of.samples_per_s, of.workload)
    return Line(cells={**cells, catalogue.RATE.key: rate, RATIO.key: ratio}, marks=marks)


# ---------------------------------------------------------------- minibatches


TITLE = "Minibatches"
STEP = Column(key="step_ms", title="ms", unit="ms")
EFFICIENCY = Column(key="minibatch_efficiency", title="minibatch efficiency", unit=PERCENT, unit_in_cells=True)
OVER_SMALLER = Column(key="over_smaller", title="x the smaller's time")


def minibatches(found: Sequence[Minibatch], context: Context, notes: Notes) -> Iterator[Section]:
    """Yield a table per strategy and device: passes and world sizes, each by batch size."""
    said = list(map(_conditions, found))
    placements = {each.placement for each in found if not each.alone}

    def title(one: Minibatch) -> str:
        alone = f"{one.contender.strategy}, one device alone"
        name = alone if one.alone else labels.exchange(one.contender, context.shared)
        placed = (one.placement,) if len(placements) > 1 and not one.alone else ()
        return f"{TITLE}: {', '.join((name, *_differing(_conditions(one), said), *placed))}"

    for name, sweep in _by_title(found, title).items():
        rate = catalogue.RATE.of_unit(sweep[0].workload.unit)
        ratios = (EFFICIENCY, OVER_SMALLER) if len({one.workload.batch_size for one in sweep}) > 1 else ()
        columns = (catalogue.BATCH_SIZE, STEP, rate, *ratios)
        yield Section(title=name, columns=columns, lines=tuple(_minibatch_lines(sweep, notes)))


def _conditions(one: Minibatch) -> tuple[str, ...]:
    work = one.workload
    compiled = "compiled" if work.compile else "eager"
    return (*labels.what(work), one.hardware.label, work.precision, work.memory_format, compiled)


def _minibatch_lines(sweep: Sequence[Minibatch], notes: Notes) -> Iterator[Line]:
    """Yield a line per batch size, with a rule above each pass and world size."""
    has_passes = any(not one.workload.trains for one in sweep)
    has_sizes = any(one.world_size > 1 for one in sweep)
    before = ""
    for one in sweep:
        passes = labels.PASSES[one.workload.pass_] if has_passes else ""
        above = ", ".join(filter(None, (passes, f"N = {one.world_size}" if has_sizes else "")))
        line = _minibatch(one)
        yield replace(line, above=above if above != before else "", marks=notes.causes(one.footnotes))
        before = above


def _minibatch(one: Minibatch) -> Line:
    found: dict[str, Cell] = {catalogue.BATCH_SIZE.key: quantities.integer(one.workload.batch_size)}
    if one.failed is not None:
        return Line(cells=found, says=quantities.outcome(one.failed), flags=("FAILED",))
    found[STEP.key] = None if one.step_s is None else quantities.milliseconds(one.step_s)
    found[catalogue.RATE.key] = quantities.rate(one.samples_per_s, one.workload)
    withheld = next(iter(one.flags), "")  # an unranked mark, in the place of ratios
    if not withheld:
        found[EFFICIENCY.key] = quantities.percent(one.efficiency)
        found[OVER_SMALLER.key] = quantities.speedup(one.over_smaller)
    emulated = ("EMULATED",) if one.hardware.profile else ()
    worse = ""
    if one.is_worse and one.linear is not None:
        worse = f"more than {one.linear:.3g} x as long as {one.smaller_batch_size}"
    return Line(cells=found, says=withheld, flags=(*emulated, *one.flags), remark=worse)


# ---------------------------------------------------------------- over time


ROUNDS = Column(key="rounds", title="rounds")
TIMES: tuple[Column, ...] = tuple(
    Column(key=f"{name}_s", title=name, unit="ms", group="a step") for name in ("p50", "p95", "p99", "worst")
)
DRIFT = Column(
    key="drift", title="rate's change", short=("rate's", "change, %"), unit=PERCENT, brackets_noise=True
)
UNTIL = Column(key="until", title="until", is_text=True)
ALONE = Column(key="alone", title="a device alone", short=("a device", "alone"))
FAULTS = (
    Column(key="throttled", title="throttled", short=("throt-", "tled, %"), unit=PERCENT),
    Column(key="repeated", title="windows repeated", short=("windows", "repeated")),
    Column(key="link_errors", title="link errors", short=("link", "errors")),
    Column(key="failures", title="failed"),
)


def over_time(found: Sequence[OverTime], context: Context, notes: Notes) -> Iterator[Section]:
    """Yield the step times of all rounds, and the headline exchange by stretches of the run."""
    if not found:
        return
    throttled = FAULTS[:1] if any(one.whole.throttled for one in found) else ()
    yield Section(
        title=f"Step times over {duration(max(one.whole.end_s for one in found))}, all rounds",
        columns=(catalogue.NAME, WORLD_SIZE, ROUNDS, *TIMES, DRIFT, *throttled),
        lines=tuple(_over_time_line(one, context, notes) for one in found),
    )
    if one := headline_of(found):
        plain = behind(one, found)
        alone = {of.first_round: of.samples_per_s for of in plain.outline} if plain else {}
        rate = catalogue.RATE.of_unit(one.workload.unit)
        faults = [column for column in FAULTS if any(getattr(of, column.key) for of in one.outline)]
        lines = []
        for of in one.outline:
            cells: dict[str, Cell] = {UNTIL.key: duration(of.end_s), **_times(of)}
            cells[rate.key] = quantities.rate(of.samples_per_s, one.workload)
            cells[ALONE.key] = quantities.rate(alone.get(of.first_round), one.workload)
            lines.append(Line(cells=cells))
        yield Section(
            title=f"Over time: {name_of(one, context)} N={one.world_size}",
            columns=(UNTIL, ROUNDS, rate, *((ALONE,) if alone else ()), *TIMES, *faults),
            lines=tuple(lines),
        )


def is_over_time(section: Section) -> bool:
    """Return whether a table is one of these."""
    return TIMES[0] in section.columns


def headline_of(found: Sequence[OverTime]) -> OverTime | None:
    """Return the first exchange of the largest world size; None without an exchange."""
    exchanges = [one for one in found if one.kind == "exchange"]
    return max(exchanges, key=lambda one: one.world_size, default=None)


def behind(exchange: OverTime, found: Sequence[OverTime]) -> OverTime | None:
    """Return the plain loop of an exchange's efficiency; None if it was not measured."""
    plain = frameworks.load(exchange.contender.strategy).baseline
    wanted = (plain, exchange.workload.reference(exchange.world_size).batch_size, exchange.hardware)
    loops = (
        one
        for one in found
        if one.alone and (one.contender.strategy, one.workload.batch_size, one.hardware) == wanted
    )
    return max(loops, key=lambda one: one.world_size, default=None)


def name_of(one: OverTime, context: Context) -> str:
    """Return `torch:gloo`, or `torch:plain, one device alone`."""
    name = labels.exchange(one.contender, context.shared)
    return f"{name}, one device alone" if one.alone else name if one.kind == "exchange" else f"{name} ({one.kind})"


def _over_time_line(one: OverTime, context: Context, notes: Notes) -> Line:
    name = name_of(one, context)
    means = "means of windows; " if one.of_windows else ""
    longest = f"{means}longest: rank {one.worst_rank} on {one.worst_host}, round {one.worst_round + 1}"
    said = [
        f"link errors on {each.host}: {each.card} {each.counter} rose by {each.count}" for each in one.link_errors
    ]
    if one.throttle_reasons:
        said.append(f"throttled: {', '.join(one.throttle_reasons)}")
    if one.failures:
        causes = ", ".join(f"{cause} ({count})" for cause, count in sorted(one.failures.items()))
        said.append(f"{counted(one.whole.failures, 'round')} failed: {causes}")
    return Line(
        cells={
            catalogue.NAME.key: name,
            WORLD_SIZE.key: quantities.integer(one.world_size),
            DRIFT.key: quantities.percent(one.drift),
            **_times(one.whole),
        },
        flags=(*(("DRIFTING",) if one.drifts else ()), *(("THROTTLED",) if one.throttle_reasons else ())),
        remark=longest if one.steps else "",
        marks=notes.marks(f"{name} N={one.world_size}: {text}" for text in said),
    )


def _times(of: StepTimes) -> dict[str, Cell]:
    throttled, *counts = (column.key for column in (*FAULTS, ROUNDS))
    times = {column.key: getattr(of, column.key) for column in TIMES}
    return {
        **{key: None if value is None else quantities.milliseconds(value) for key, value in times.items()},
        **{key: quantities.integer(getattr(of, key)) for key in counts},
        throttled: None if of.throttled is None else quantities.fraction(of.throttled),
    }
