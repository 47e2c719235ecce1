"""Trainings to an accuracy: a table for each strategy, and who is taken for whom. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import accuracy, catalogue
from scaling.analysis.table.entries import Column
from scaling.analysis.table.rows import Training
from scaling.report import labels, quantities
from scaling.report.labels import Context
from scaling.report.parts import Cell, Line, Notes, Phrase, Quantity, Section
from scaling.text import counted

TITLE = "Training to an accuracy"
CONFUSION = "Confusion"
# Of more epochs the first, the last, and some between are shown.
MOST_EPOCHS = 8
MOST_CLASSES = 12
BATCH = Column(key="update_samples", title="batch")
RATE = Column(key="lr", title="rate")
RULE = Column(key="lr_scale", title="rule", is_text=True)
TOP1 = "held-out top-1, %, by epoch"
SECONDS = Column(key="train_s", title="trained, s")
EVALUATION = Column(key="evaluate_s", title="eval., s")
TARGET = Column(key="target_s", title="to target, s")


def sections(found: Sequence[Training], context: Context, notes: Notes) -> tuple[Section, ...]:
    """A table for each strategy, then the confusion of the best training of its largest world size."""
    by_title: dict[str, list[Training]] = {}
    for one in found:
        by_title.setdefault(_title(one, found, context), []).append(one)
    tables = [_section(title, of, notes) for title, of in by_title.items()]
    confused = [_confusion(name, one) for name, one in accuracy.best(found).items() if _is_shown(one)]
    return (*tables, *confused)


def _title(one: Training, found: Sequence[Training], context: Context) -> str:
    """What it is, and what is not the same for all."""
    said = [_conditions(each) for each in found]
    varying = (here for here, *others in zip(_conditions(one), *said, strict=True) if len(set(others)) > 1)
    return f"{TITLE}: {', '.join((labels.exchange(one.contender, context.shared), *varying))}"


def _conditions(one: Training) -> tuple[str, ...]:
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


def _section(title: str, found: Sequence[Training], notes: Notes) -> Section:
    shown = _epochs(max(one.regime.epochs for one in found))
    aims = any(one.regime.target_top1 is not None for one in found)
    top1 = tuple(Column(key=f"top1_{number}", title=str(number + 1), group=TOP1) for number in shown)
    timed = (SECONDS, TARGET, EVALUATION) if aims else (SECONDS, EVALUATION)
    rate = catalogue.RATE.of_unit(found[0].workload.unit)
    return Section(
        title=title,
        columns=(catalogue.WORLD_SIZE, BATCH, RATE, RULE, *top1, *timed, rate),
        lines=tuple(_line(one, shown, notes) for one in found),
    )


def _epochs(count: int) -> tuple[int, ...]:
    """Which epochs have a column."""
    if count <= MOST_EPOCHS:
        return tuple(range(count))
    return tuple(sorted({round(place * (count - 1) / (MOST_EPOCHS - 1)) for place in range(MOST_EPOCHS)}))


def _line(one: Training, shown: Sequence[int], notes: Notes) -> Line:
    found: dict[str, Cell] = {
        catalogue.WORLD_SIZE.key: quantities.integer(one.world_size),
        BATCH.key: quantities.integer(one.update_samples),
        RATE.key: f"{one.regime.rate:.4g}",
        RULE.key: one.regime.lr_scale,
    }
    if not one.seeds and one.failed is not None:
        diverged = one.failed.cause == "nan-loss"
        says = "diverged: the loss is no number" if diverged else quantities.outcome(one.failed)
        return Line(cells=found, says=says, flags=one.flags, marks=notes.marks(_failures(one)))
    for number in shown:
        found[f"top1_{number}"] = _at(one, number)
    found |= {
        SECONDS.key: _seconds(one.train_s),
        TARGET.key: _seconds(one.target_s),
        EVALUATION.key: _seconds(one.evaluate_s),
        catalogue.RATE.key: quantities.rate(_alone(one.samples_per_s), one.workload),
    }
    return Line(cells=found, flags=one.flags, remark=_remark(one), marks=notes.marks(_notes(one)))


def _alone(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(mean=value, low=None, high=None, n=1)


def _at(one: Training, number: int) -> Quantity | None:
    """After an epoch; nothing where it ended before."""
    if number >= len(one.top1):
        return None
    return Quantity(value=100 * one.top1[number], digits=1)


def _seconds(value: float | None) -> Quantity | None:
    return None if value is None else Quantity(value=value, digits=2 if value < 10 else 1 if value < 100 else 0)


def _remark(one: Training) -> Phrase:
    """Where a larger batch stops learning."""
    if one.less_than_samples is None:
        return ()
    return (f"learns less than batch {one.less_than_samples}",)


# ---------------------------------------------------------------- footnotes


def _failures(one: Training) -> tuple[str, ...]:
    return () if one.failed is None else (f"{one.failed.cause}: {one.failed.message}",)


def _notes(one: Training) -> tuple[str, ...]:
    return tuple(filter(None, (*_failures(one), _of_seeds(one), _of_target(one), *one.warnings)))


def _of_seeds(one: Training) -> str:
    """What each seed came to, where there are several."""
    if len(one.seeds) < 2:
        return ""
    last = (
        f"seed {seed} {100 * curve[-1]:.1f} %"
        for seed, curve in zip(one.seeds, one.top1_by_seed, strict=True)
        if curve
    )
    return f"N={one.world_size}, batch {one.update_samples}, rate {one.regime.rate:.4g}: {', '.join(last)}"


def _of_target(one: Training) -> str:
    """How many seeds the seconds to the target are of."""
    target = one.regime.target_top1
    if target is None:
        return ""
    goal = f"{100 * target:g} %"
    if not one.reached:
        return f"{goal} was not reached in {counted(one.regime.epochs, 'epoch')}"
    if len(one.seeds) == 1:
        return f"seconds to {goal} of one seed: another may take one epoch or several more or less; --seeds 0,1,2"
    if one.reached < len(one.seeds):
        return f"{goal} was reached by {one.reached} of {len(one.seeds)} seeds: the seconds are theirs"
    return ""


# ---------------------------------------------------------------- confusion


def _is_shown(one: Training) -> bool:
    return 0 < len(one.confusion) <= MOST_CLASSES


def _confusion(name: str, one: Training) -> Section:
    """A line for each class, a column for what its held-out samples were taken for."""
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
