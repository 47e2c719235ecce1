"""What to try: one table from a cause, a mark or a note to a change, and to the flag that makes it.

`python -m tests.bench.advice` measures flags, `python -m tests.bench.intervals` what rounds are worth. A flag that
does not lower its cause is no advice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import NamedTuple

from scaling.analysis.table.catalogue import mark_named, noise
from scaling.analysis.table.rows import Column, Row
from scaling.quiet.notes import FOREIGN_LOAD, SLOWER_CORES
from scaling.records.run import Header
from scaling.text import counted

# Lines that a report prints.
MOST = 2
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
    return tuple(dict.fromkeys(filter(None, found)))[:MOST]


def _first(notes: Sequence[str], starts: tuple[str, ...]) -> str:
    return next((note for note in notes if note.startswith(starts)), "")


def _more_ranks(header: Header) -> str:
    """Return the command that starts a rank on each device of this host."""
    host = header.hosts[0]
    count, what = (len(host.gpus), "GPU") if header.device == "cuda" else (len(host.cores), "core")
    if count < 2:
        return "more devices: a single one shows no scaling"
    return f"python -m scaling.run --ranks {count} (one rank was started; this host has {counted(count, what)})"
