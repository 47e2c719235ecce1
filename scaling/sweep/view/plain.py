"""The interface of a view, the view as plain lines, fit for a Slurm log, and the words that both views share."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TextIO

from scaling.analysis.measured.step_time import step_time
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import accuracy
from scaling.analysis.table.rows import Row
from scaling.hosts.info import cores_text
from scaling.records.burn_in import asked_s
from scaling.records.events import Failed
from scaling.records.run import Header, PointRecord
from scaling.sweep.outcome import cause_of
from scaling.sweep.state import Ahead, PointState
from scaling.text import counted, decimals, duration, one_line, plus_minus
from scaling.workloads import models

# ---------------------------------------------------------------- the interface of a view


class View:
    """The receiver of all events of a sweep, in order. This one shows nothing."""

    def opened(self, header: Header, total: int) -> None:
        """Begin; `total` points are planned. Called once."""

    def began(self, state: PointState, number: int) -> None:
        """Begin an attempt at point `number`, counted from 1."""

    def progress(self, state: PointState) -> None:
        """Take the newest state of the running point, on every turn of the event loop."""

    def advanced(self, ahead: Ahead) -> None:
        """Note how much is done and left. The next `progress` or `finished` shows it."""

    def finished(self, record: PointRecord, rows: Sequence[Row], number: int, total: int) -> None:
        """Note that a point has ended; `number` of `total` are over. `rows` is the table so far."""

    def extended(self, total: int) -> None:
        """Note that a round was added; now `total` points are planned."""

    def note(self, text: str) -> None:
        """Show a warning or another event."""

    def closed(self, stream: TextIO | None = None) -> None:
        """Restore the terminal at the end. May be called again. `stream` is the terminal, if it has changed: a
        launcher that is being ended may not forward its ranks' output."""


# ---------------------------------------------------------------- words

HEARTBEAT_S, LEAST_S = 5.0, 2.0
NAMED = 4


def number(value: float) -> str:
    """Format `value` with about four digits, never in scientific notation."""
    return f"{value:.{decimals(value)}f}"


def percent_done(share: float) -> str:
    """Format a share of 0 to 1; 100 % only if nothing remains."""
    return f"{int(100 * share + 1e-9)} %"


def left(ahead: Ahead) -> str:
    return "left unknown" if ahead.left_s is None else f"left {duration(ahead.left_s)}"


def name_of(row: Row) -> str:
    return row.strategy if row.interconnect == "auto" else f"{row.strategy} {row.interconnect}"


def claimed(row: Row) -> Estimate | None:
    """Return the efficiency; None if the samples of its ranks taught less than those of the baseline."""
    return None if row.learnt_less else row.efficiency


def phase(state: PointState) -> str:
    """Describe where a running point is: `measuring: window 4 of 10`."""
    ranks = len(state.ranks)
    if (failure := cause_of(state)) is not None:
        return f"{blame(failure)}; ending the others" if ranks > 1 else blame(failure)
    if state.phase == "starting":
        missing = [helper.task.role for helper in state.helpers if helper.announced is None]
        helpers = f", waiting for {' '.join(missing)}" if missing else ""
        return f"starting: {state.ready} of {counted(ranks, 'rank')} ready{helpers}"
    if state.phase == "warming":
        return f"warming: window {min(len(rank.warmup) for rank in state.ranks) + 1}"
    if state.point.regime is not None and state.phase in ("measuring", "evaluating"):
        return _training(state)
    if state.phase in ("measuring", "waiting"):
        done = min(len(rank.windows) for rank in state.ranks)
        doing = "measuring" if state.phase == "measuring" else "waiting until its cores are quiet"
        return f"{doing}: window {min(done + 1, state.expected)} of {state.expected}"
    if state.phase == "soaking":
        return "soaking: more turns show whether the efficiency lasts"
    if state.phase == "inspecting":
        return f"inspecting: {state.inspected} of {ranks} ranks done"
    return f"finishing: {state.ended} of {counted(ranks, 'rank')} ended"


def _training(state: PointState) -> str:
    evaluated = min(len(rank.evaluations) for rank in state.ranks)
    reached = accuracy.top1(rank.evaluations[evaluated - 1] for rank in state.ranks) if evaluated else None
    so_far = "" if reached is None else f", top-1 {100 * reached:.1f} %"
    doing = "evaluating" if state.phase == "evaluating" else "training"
    return f"{doing}: epoch {min(evaluated + 1, state.expected)} of {state.expected}{so_far}"


def blame(failed: Failed) -> str:
    """Name a failure and its place, if a worker was started: `FAILED crash(SIGSEGV) on rank 1 (node2)`."""
    return f"FAILED {failed.cause}" + (f" on rank {failed.rank} ({failed.host})" if failed.host else "")


def failure(failed: Failed) -> str:
    message = one_line(failed.message)
    log = f"; log {failed.log}" if failed.log else ""
    return f"{blame(failed)}: {message}{log}" if message else blame(failed) + log


def speed(record: PointRecord) -> str:
    """Return the rate of all ranks by the slowest rank's time; for `comm`, ms per exchange; "" if unmeasured."""
    step = step_time(record)
    if step is None:
        return ""
    if record.point.kind == "comm":
        return f"{number(step.step_s * 1e3)} ms per exchange"
    work = record.point.workload
    return f"{number(record.point.global_batch_size * work.units_per_sample / step.step_s)} {work.unit}/s"


def summary(records: Sequence[PointRecord], rows: Sequence[Row]) -> str:
    """Describe points that are over: the result of one, or the efficiencies so far at the largest world size."""
    if len(records) == 1:
        return f"{records[0].point.label}: {result(records[0])}"
    largest = max((row.world_size for row in rows if claimed(row)), default=1)
    found = [
        f"{name_of(row)} {_share(one)}" for row in rows if row.world_size == largest > 1 and (one := claimed(row))
    ]
    so_far = f"; efficiency at N={largest} so far: {_named(found)}" if found else ""
    return f"{len(records)} points measured{so_far}"


def _share(efficiency: Estimate) -> str:
    of = efficiency.times(100)
    return f"{of.mean:.1f} % {plus_minus(of.mean, of.low, of.high, 1)}".rstrip()


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def warnings(records: Sequence[PointRecord]) -> Iterator[str]:
    """Yield one line for each kind of warning: its first text, and how many points have one."""
    by_kind: dict[str, list[str]] = {}
    for record in records:
        for warning in record.warnings:
            by_kind.setdefault(warning.kind, []).append(f"{record.point.label}: {warning.text}")
    for texts in by_kind.values():
        yield texts[0] + (f" (and {len(texts) - 1} more like it)" if len(texts) > 1 else "")


def result(record: PointRecord) -> str:
    """Describe the result of a measured point: `602.1 images/s, 10 windows in 2.1 s (4.9 s in all)`."""
    if record.point.regime is not None:
        return _trained(record)
    windows = max((len(rank.windows) for rank in record.ranks), default=0)
    parts = (
        speed(record),
        f"{windows} windows in {duration(record.measured_s)} ({duration(record.wall_s)} in all)",
        "tried again" if record.retries else "",
    )
    return ", ".join(part for part in parts if part)


def _trained(record: PointRecord) -> str:
    last = [rank.evaluations[-1] for rank in record.ranks if rank.evaluations]
    epochs = counted(max(len(rank.windows) for rank in record.ranks), "epoch")
    took = f"{duration(record.measured_s)} ({duration(record.wall_s)} in all)"
    return f"top-1 {100 * accuracy.top1(last):.1f} % after {epochs} in {took}, {speed(record)}"


def headline(header: Header) -> str:
    """Describe what runs: strategies, model, data, device, ranks and hosts, and why this device."""
    config = header.config
    hosts = len(set(header.host_of_rank))
    model = " on ".join(str(config[key]) for key in ("model", "data") if config.get(key))
    ranks = f"{counted(header.launch_size, 'rank')} on {counted(hosts, 'host')}"
    strategies = ", ".join(config.get("strategy") or ())
    device = f"{config.get('device')} EMULATED" if header.device == "emulated" else header.device
    parts = (strategies, model, device, ranks, header.why_default)
    return " · ".join(part for part in parts if part)


def introduction(header: Header, total: int) -> Iterator[str]:
    """Yield the first lines of a log: what runs, on what and why, how much of it."""
    config = header.config
    batch, whole = config.get("batch_size"), config.get("global_batch_size")
    batch = batch or ", ".join(map(str, config.get("batch_sizes") or ()))
    per = "node" if config.get("batch_rule") == "node" else "device"
    model = config.get("model")
    unit = models.CATALOGUE[model].unit if model in models.CATALOGUE else "samples"
    what = "sequences" if unit == "tokens" else unit
    rule = f"{whole} {what} over all devices" if whole else f"{batch} {what} per {per}" if batch else ""
    rule = "found while it runs" if config.get("script") else rule
    sizes = ", ".join(map(str, config.get("world_sizes") or ()))
    yield f"scaling {header.version}: {headline(header)}"
    if rule and sizes:
        yield f"batch: {rule}; world sizes: {sizes}"
    yield from _hosts(header)
    about = f", about {duration(header.estimate_s)}" if header.estimate_s else ""
    about += ", longer if the script's start or its steps are slow" * bool(about and config.get("script"))
    if burn_in_s := asked_s(config):
        about = f", then rounds until {duration(burn_in_s)} are over"
    yield f"{counted(total, 'point')} planned{about}"


def _hosts(header: Header) -> Iterator[str]:
    infos = {host.hostname: host for host in header.hosts}
    alike: dict[str, list[str]] = {}
    for name, ranks in Counter(header.host_of_rank).items():
        text = counted(ranks, "rank")
        if info := infos.get(name):
            gpus = Counter(gpu.name for gpu in info.gpus)
            devices = ", ".join(f"{count} x {gpu}" for gpu, count in gpus.items())
            text += f", {devices or f'{cores_text(info)} of {info.cpu_model}'}"
        alike.setdefault(text, []).append(name)
    for text, names in alike.items():
        yield f"{counted(len(names), 'host')} ({_named(names)}): {text}" + (" each" if len(names) > 1 else "")


# ---------------------------------------------------------------- the stream and the view


class Stream:
    """A stream that never fails the sweep: it replaces characters and drops output that cannot be written."""

    def __init__(self, stream: TextIO) -> None:
        self.redirect(stream)

    def redirect(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding or "utf-8"

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


class PlainView(View):
    """A view of lines for a file or a pipe. After 5 s without output a line has the progress and the time left.
    Points that end within 2 s share a line. Failures are printed at once."""

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._stream, self._clock, self._unix_clock = Stream(stream), clock, unix_clock
        self._printed_s = clock()
        self._done = self._total = 0
        self._ahead = Ahead(0.0, None)
        self._over: list[PointRecord] = []  # not printed yet
        self._rows: Sequence[Row] = ()

    def opened(self, header: Header, total: int) -> None:
        self._total, self._ahead = total, Ahead(0.0, header.estimate_s or None)
        for text in introduction(header, total):
            self.note(text)

    def began(self, state: PointState, number: int) -> None:
        del state
        self._done = number - 1

    def progress(self, state: PointState) -> None:
        silent_s = self._clock() - self._printed_s
        if self._over and silent_s >= LEAST_S:
            self._print_over()
        elif silent_s >= HEARTBEAT_S:
            self._event(
                f"{percent_done(self._ahead.share)} done, {left(self._ahead)}; {state.point.label}: {phase(state)}"
            )

    def advanced(self, ahead: Ahead) -> None:
        self._ahead = ahead

    def finished(self, record: PointRecord, rows: Sequence[Row], number: int, total: int) -> None:
        self._done, self._total, self._rows = number, total, rows
        if isinstance(record.outcome, Failed):
            self._event(f"{record.point.label}: {failure(record.outcome)}")
        self._over.append(record)

    def extended(self, total: int) -> None:
        self._total = total
        self.note(f"one more round, {total} points in all")

    def note(self, text: str) -> None:
        self._print(one_line(text))

    def closed(self, stream: TextIO | None = None) -> None:
        del stream
        self._print_over()

    def _print_over(self) -> None:
        over, self._over = self._over, []
        measured = [record for record in over if not isinstance(record.outcome, Failed)]
        if measured:
            remains = f", {left(self._ahead)}" if self._done < self._total else ""
            self._event(f"{summary(measured, self._rows)}{remains}")
        for text in warnings(over):
            self._event(f"warning: {text}")

    def _event(self, text: str) -> None:
        self._print(f"[{self._done:>{len(str(self._total))}}/{self._total}] {one_line(text)}")

    def _print(self, line: str) -> None:
        self._printed_s = self._clock()
        stamp = time.strftime("%H:%M:%S", time.localtime(self._unix_clock()))
        self._stream.write(f"{stamp} {line}\n")
        self._stream.flush()
