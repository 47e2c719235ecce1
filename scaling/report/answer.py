"""The answer of a run: how well it scales, what is lost, what to try, whether to trust it, what is fastest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.measured.cell import cells
from scaling.analysis.table import accuracy, catalogue
from scaling.analysis.table.catalogue import is_wrong, mark_named, noise, serious, unclaimed
from scaling.analysis.table.rows import Column, Comparison, Contender, Row, compared
from scaling.quiet.notes import FOREIGN_LOAD, SLOWER_CORES, Load, joined
from scaling.records.point import WANTED, Record
from scaling.records.run import Header, WarningKind
from scaling.report import imported, labels, quantities, verdict
from scaling.report.document import MOST_BUSY_PERCENT, error_is_unknown
from scaling.report.labels import headline
from scaling.report.material import Material
from scaling.report.parts import NONE, Entry, Quantity, labelled
from scaling.text import counted, decimals, legible, one_line, several

# Smaller losses are not named.
LEAST = 0.01
NAMED = 6
MOST_LOSSES = 3


class Answer(Record, frozen=True, kw_only=True):
    """The verdict on the headline row, and on the run.

    `stamps`: the row's serious marks and doubts, which the sentence begins with.
    `lines`: about the verdict of scaling certify; networks, exchanges and frameworks compared at the largest world
    size (`faster`); the largest losses (`lost`), and what to `try`; rounds, disturbances and marks of all rows
    (`trust`).
    """

    sentence: str
    stamps: tuple[str, ...] = ()
    lines: tuple[Entry, ...] = ()

    @property
    def verdict(self) -> str:
        """The sentence after its stamps: `NOISY: torch:gloo reaches ...`."""
        return ": ".join(filter(None, (", ".join(self.stamps), self.sentence)))


def answer(material: Material) -> Answer:
    """Return the answer with printable signs only, as a document has."""
    found, of = _answer(material), material.certificate
    if of is not None:
        found = replace(found, stamps=(of.result, *found.stamps), lines=(*verdict.lines(of), *found.lines))
    return legible(found)


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
    lost = "; ".join(filter(None, (_lost(row, losses), *places(notes))))
    to_try = tries(row, [cause for cause, _ in losses], load.programs, material.header, notes)
    return Answer(
        sentence=_sentence(row, material),
        stamps=(*serious(row.flags), *doubts),
        lines=(
            *labelled("faster", _faster(material, row.world_size)),
            *([("lost", lost)] if lost else ()),
            *labelled("try", to_try),
            ("trust", "; ".join(_trust(material, load))),
        ),
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
        lines=(("try", "the log and the notes say why; then --resume"),) if material.records else (),
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
        why = f"{audited(row)} (AUDIT)"
    if why or speedup is None or efficiency is None:
        return f"{name} trains {rate} on {on}. No efficiency is claimed: {why}."
    if row.world_size == 1:
        return f"{name} on one device reaches {efficiency} of its plain loop: {rate}."
    return f"{name} reaches {efficiency} of linear scaling on {on}: {rate}, {speedup.mean()}x."


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
    return quantities.grouped(rate).mean() if rate else NONE


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
        return ", ".join(f"{size} {cause.phrase}" for cause, size in losses[:MOST_LOSSES])
    if row.breakdown is None or unclaimed(row):
        return ""
    found = [row.breakdown_intervals.get(cause.key) for cause in catalogue.causes([row])]
    halves = [None if one is None else one.half_width for one in found]
    if None in halves:
        return "not tested: a single round has no interval"
    least = max([LEAST, *filter(None, halves)])
    return (
        f"no cause above {_percent(least)} is significant"
        if least < 1
        else "the intervals are too wide for causes"
    )


def largest_loss(row: Row) -> str:
    """Return `exchange's CPU 8.0 %`; "-" if no loss is significant."""
    return next((f"{cause.title} {size.mean()}" for cause, size in _losses(row)), NONE)


def _percent(value: float) -> str:
    return quantities.fraction(value).mean()


# ---------------------------------------------------------------- try
#
# One table from a cause, a mark or a note to a change, and to the flag that makes it. `python -m
# tests.bench.advice` measures flags, `python -m tests.bench.intervals` what rounds are worth. A flag that does not
# lower its cause is no advice.

# Lines that a report prints.
MOST_TRIES = 2
MOST_ROUNDS = 30
NOTHING = "nothing is known that helps"


class Change(NamedTuple):
    """A change for the rows that it `suits`. `flag` may contain `{batch}`, `{whole}` (twice the row's batch per
    device, and in all) and `{rounds}`; "" if no flag makes the change."""

    says: str
    flag: str = ""
    suits: Callable[[Row], bool] = lambda _: True

    def text(self, row: Row) -> str:
        """Return `--batch-size 64 (fewer exchanges per sample)`."""
        if not self.flag:
            return self.says
        batch, whole = 2 * row.workload.batch_size, 2 * row.global_batch_size
        return f"{self.flag.format(batch=batch, whole=whole, rounds=rounds_needed(row))} ({self.says})"


def _is_script(row: Row) -> bool:
    return bool(row.workload.script)


_LARGER_BATCH = Change(
    "fewer exchanges per sample", "--batch-size {batch}", lambda row: row.workload.batch_rule == "weak"
)
_MORE_SERVERS = Change(
    "each server has less to receive", "--servers per-node", lambda row: 0 < row.servers < row.nodes
)
_NETWORK = Change("a faster network: compare them by --interconnect", suits=lambda row: row.nodes > 1)

# By cause of loss, the best change first; every cause ends with a change that suits all rows.
_DDP = Change(
    "a larger batch or gradient accumulation; bucket_cap_mb, static_graph, gradient_as_bucket_view of "
    "DistributedDataParallel",
    suits=_is_script,
)
BY_CAUSE: Mapping[str, tuple[Change, ...]] = {
    "contention": (
        Change(
            "fewer ranks on each node: they share memory bandwidth and caches",
            suits=lambda row: row.hardware.device == "cpu",
        ),
        Change(
            "power limits and cooling: the GPUs of a node slow each other",
            suits=lambda row: row.hardware.device == "cuda",
        ),
        Change(NOTHING),
    ),
    "straggling": (
        Change("equal work for all ranks: batches of samples of similar size", suits=_is_script),
        Change("python -m scaling bisect finds the slow node", suits=lambda row: row.nodes > 1),
        Change("the slow rank's core or GPU: the page's heat map of ranks shows which"),
    ),
    "exchange_cpu": (_DDP, _LARGER_BATCH, Change("cores of its own for the exchange: fewer ranks on each node")),
    "servers": (
        Change(
            "servers on nodes that do not train",
            "--server-hosts dedicated",
            lambda row: row.server_hosts == "shared",
        ),
        Change(NOTHING),
    ),
    "waiting": (_NETWORK, _DDP, Change(NOTHING)),
    "data_wait": (
        Change("more num_workers, persistent_workers, pin_memory of the DataLoader", suits=_is_script),
        Change("a faster feed: smaller or fewer files, --feed native, more --feed-workers"),
    ),
    "exposed": (_MORE_SERVERS, _DDP, _LARGER_BATCH, _NETWORK, Change(NOTHING)),
    "small_batch": (
        Change("a larger batch: the script divides it among its ranks", suits=_is_script),
        Change("more samples per device", "--global-batch-size {whole}"),
    ),
    "unexplained": (Change("no control run explains it; --trace shows where a step's time goes"),),
}

# By mark; the marks that doubt a row are first. "" if the mark asks for nothing.
BY_MARK: Mapping[str, Change] = {
    "FAILED": Change("the row's note and log say why; then --resume"),
    "UNSENT": Change("python -m scaling check: the gradients did not cross the network"),
    "MISLABELLED": Change("python -m scaling check: the bytes took another network than the name says"),
    "AUDIT": Change("report it with run.jsonl: this row's own counts disagree"),
    "OVERSUBSCRIBED": Change("one rank per core or GPU: fewer ranks, or more nodes"),
    "UNVERIFIED": Change("python -m scaling check says why the counters could not be read"),
    "NOISY": Change("narrower intervals, on an idle machine", "--rounds {rounds}"),
    "ONE-ROUND": Change("intervals and comparisons", "--rounds 3"),
    "THROTTLED": Change("power limits and cooling: a clock was lowered"),
    "UNSETTLED": Change("an idle machine: steps still changed when measuring began"),
    "DRIFTING": Change("a longer run: the rate of the first seconds does not last"),
    "SUPERLINEAR": Change("an idle machine: the single device was probably disturbed"),
    **dict.fromkeys(("ASYNC", "EMULATED", "VERIFIED", "PREDICTED", "IMPORTED"), Change("")),
}

# By cause of a failure that --resume alone would repeat.
BY_FAILURE: Mapping[str, str] = {
    "busy": "nvidia-smi -c DEFAULT, or end the process on that GPU (nvidia-smi shows it); then --resume",
    "oom": "a smaller --batch-size: memory ran out, and --resume would repeat that",
    "memlock": "ulimit -l unlimited on all nodes; then --resume",
    "shm": "a larger /dev/shm (docker run --shm-size); then --resume",
}

# By how a note about a script begins.
BY_SCRIPT: Mapping[str, str] = {
    "waiting for data:": "more num_workers of the DataLoader, or less work in its data set",
    "pauses:": "shorter or fewer pauses: persistent_workers, evaluation and checkpoints less often",
}

# By how a note begins, of notes that explain a cause or a disturbance; `BY_MARK` has those of marks. `{programs}`:
# the programs that used the cores; `{place}`: the rank, node or link that the note names.
BY_NOTE: Mapping[str, str] = {
    FOREIGN_LOAD: "an idle machine: {programs} used the cores",
    SLOWER_CORES: "a machine of your own: its cores were slower at times (heat, clock, another virtual machine)",
    "slow rank": "the core or GPU of {place}: it is slow",
    "slow and fast ranks": "the core or GPU of the slow rank, which a note names",
    "slow link": "cable, port and driver of {place}: python -m scaling check measures every pair",
    "contention:": "{place}: it shares its core, cache or power with others",
}
# The notes that explain a cause, and so have the better advice.
NOTES_OF: Mapping[str, tuple[str, ...]] = {
    "straggling": ("slow rank", "slow and fast ranks"),
    "contention": ("contention:",),
    "waiting": ("slow link",),
    "exposed": ("slow link",),
}
_PLACE = re.compile(r"[^:]+: (?P<place>.+?)(?: takes | loses |;|$)")
# Notes that name a place; it appears on the first screen whatever the row loses.
OF_PLACES = ("slow link", "slow rank", "slow and fast ranks", "contention:")
# Causes that programs outside the launch make larger.
_OF_MACHINE = ("contention", "straggling", "waiting", "unexplained")


def rounds_needed(row: Row) -> int:
    """Return the rounds after which the row is probably not NOISY: half an interval shrinks with their root."""
    times = noise(row.efficiency, row.samples_per_s)
    return min(max(ceil(row.rounds * times**2), row.rounds + 2), MOST_ROUNDS)


def of_cause(row: Row, cause: str) -> str:
    """Return what to try against a cause: the first change that suits the row."""
    return next(change.text(row) for change in BY_CAUSE[cause] if change.suits(row))


def of_mark(row: Row, mark: str) -> str:
    if mark == "AUDIT" and _is_script(row):
        return f"the script: {audited(row)}"
    cause = row.failed.cause if mark == "FAILED" and row.failed else ""
    return BY_FAILURE.get(cause) or BY_MARK[mark].text(row)


def audited(row: Row) -> str:
    """Return the fault of a script that the first audit found."""
    found = (note.removeprefix("audit: ") for note in row.footnotes if note.startswith("audit: "))
    return next(found, "its parameters never changed")


def of_note(note: str, programs: str = "") -> str:
    """Return what to do about a note, or that nothing is known."""
    found = next((text for start, text in BY_NOTE.items() if note.startswith(start)), NOTHING)
    return found.format(programs=programs or "another program", place=_place(note))


def _place(note: str) -> str:
    return found["place"] if (found := _PLACE.match(note)) else ""


def places(notes: Sequence[str]) -> Iterator[str]:
    """Yield `slow link: node2` for the first note of each kind that names a slow place."""
    for start in OF_PLACES[:2]:
        yield from (f"{start}: {_place(note)}" for note in [one for one in notes if one.startswith(start)][:1])


def tries(
    row: Row, losses: Sequence[Column], programs: str, header: Header, notes: Sequence[str]
) -> tuple[str, ...]:
    """Return what to try, most important first: what makes the row doubtful, slow places that the `notes` of all
    rows name, then its largest loss."""
    asks_rounds = header.program == "scaling.run"  # scaling certify decides on its rounds
    doubts = [mark for mark in BY_MARK if mark in row.flags and (mark != "NOISY" or asks_rounds)]
    found = [of_mark(row, mark) for mark in doubts if mark_named(mark).is_wrong or mark == "FAILED"]
    disturbed = _first(row.footnotes, (FOREIGN_LOAD, SLOWER_CORES))
    is_machine = bool(losses) and losses[0].key in _OF_MACHINE
    if disturbed and (is_machine or "NOISY" in row.flags):
        found.append(of_note(disturbed, programs))
    slow = [note for start in OF_PLACES for note in notes if note.startswith(start)]
    found += map(of_note, slow[:1])
    found += (of_mark(row, mark) for mark in doubts)
    if header.launch_size == 1:
        found.append(_more_ranks(header))
    elif losses and not (disturbed and is_machine):
        note = _first(row.footnotes, NOTES_OF.get(losses[0].key, ()))
        found.append(of_note(note) if note else of_cause(row, losses[0].key))
    for note in row.footnotes if _is_script(row) else ():
        found += (text for start, text in BY_SCRIPT.items() if note.startswith(start))
    return tuple(dict.fromkeys(filter(None, found)))[:MOST_TRIES]


def _first(notes: Sequence[str], starts: tuple[str, ...]) -> str:
    return next((note for note in notes if note.startswith(starts)), "")


def _more_ranks(header: Header) -> str:
    """Return the command that starts a rank on each device of this host."""
    host = header.hosts[0]
    count, what = (len(host.gpus), "GPU") if header.device == "cuda" else (len(host.cores), "core")
    if count < 2:
        return "more devices: a single one shows no scaling"
    return f"python -m scaling.run --ranks {count} (one rank was started; this host has {counted(count, what)})"


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
            slower, faster = _percent(-one.advantage.mean), quantities.percent(one.advantage)
            said = f"{slower} slower" if one.advantage.mean < 0 else f"{faster} faster"
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


def banners(material: Material) -> Iterator[tuple[str, str]]:
    """Yield each serious mark with the rows that have it, worst first. EMULATED has a notice in the document."""
    rows = counted(len(material.rows), "row")
    for mark in serious({flag for row in material.rows for flag in row.flags}):
        if about := mark_named(mark).about:
            found = [row for row in material.rows if mark in row.flags]
            named = [f"{one_line(material.label(row))} N={row.world_size}," for row in found]
            yield mark, f"{len(found)} of {rows}: {about}: {several(named, NAMED).rstrip(',')}"
