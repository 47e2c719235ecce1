"""Rank 0 measures the plan, then prints the table of the run's file, also after an error or a signal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, TextIO

from scaling.analysis.table.analyse import kept
from scaling.analysis.table.rows import Row
from scaling.command import complain, deliver, terminal_width
from scaling.errors import Interrupted, ScalingError, SilentRanks, StoreError, UsageError
from scaling.plan.plan import Plan
from scaling.records import store
from scaling.records.burn_in import PointSummary
from scaling.records.events import Finished
from scaling.records.messages import ToAgent, ToSweep
from scaling.records.run import Certificate, Header, PointRecord
from scaling.report.anonymous import Disguise, hosts_of
from scaling.report.formats import openmetrics
from scaling.report.material import PAGE_FILE, Material, Place
from scaling.run import NAME, listing, programs
from scaling.run.invocation import Invocation
from scaling.sweep.sweep import More, Sweep
from scaling.sweep.view import live
from scaling.sweep.view.plain import PlainView, Stream, View
from scaling.text import counted
from scaling.tools.lab import slowdown
from scaling.transport.base import Mailbox
from scaling.transport.mpi import beyond_the_launcher, launcher_output

# ---------------------------------------------------------------- pages
# In a process of its own, so that drawing costs the run neither its exit code nor its memory.


REPORT = "report"


def write_page(folder: Path, look: Callable[[], None] = lambda: None, *, anonymous: bool = False) -> Path:
    """Write the page into the run's folder; return its path. Call `look` meanwhile. Raises StoreError."""
    path = folder / PAGE_FILE
    arguments = [str(folder), "--format", "html", "--output", str(path), *(["--anonymous"] if anonymous else [])]
    try:
        done = programs.output(REPORT, arguments, look)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"{path}: not written: {error}") from None
    if done.returncode:
        why = programs.complaint(done, REPORT)
        raise StoreError(f"{path}: not written: {why}; then try: python -m scaling {REPORT} {' '.join(arguments)}")
    return path


# ---------------------------------------------------------------- measuring

Certify = Callable[[Sweep, View], Certificate]


class Ending(NamedTuple):
    """The steps after the last point that `asked` wants: screen, page, file of metrics, comparison.
    `look` raises Interrupted on a signal; `hidden`: the names that `--anonymous` leaves out; `event`: how the run
    ended, if early; `by_launcher`: mpirun may be ending too."""

    asked: Invocation
    look: Callable[[], None]
    hidden: Disguise | None = None
    event: str = ""
    by_launcher: bool = False
    color: bool = False
    width: int = 80

    def complain(self, error: ScalingError) -> None:
        complain(self.hidden.text(str(error)) if self.hidden else error, NAME)


def measure(
    made: Plan,
    mailbox: Mailbox[ToAgent, ToSweep],
    opened: store.Store,
    header: Header,
    asked: Invocation,
    records: Sequence[PointRecord] = (),
    *,
    more: More | None = None,
    certify: Certify | None = None,
    summaries: Sequence[PointSummary] = (),
) -> int:
    """Measure the points that `records` lack, then print and write what `asked` wants; return the exit code.
    An interrupted run is not compared, and gets no verdict of `certify`."""
    _prepare()
    hidden = Disguise(hosts_of(header, records)) if made.config.anonymous else None
    ending = Ending(asked, mailbox.look, hidden)
    screen: View
    if hidden and asked.view != "none":
        screen = _HiddenView(sys.stdout, hidden)
    else:
        screen = live.make(asked.view, sys.stdout)
    sweep = Sweep(made, mailbox, opened, screen, records=records, summaries=summaries, more=more)
    try:
        screen.opened(header, len(made.cells) * made.rounds)
        changed = listing.changed_variables(header.hosts)
        for line in (*made.memory_doubts, *listing.open_servers(made.cells), *changed):
            screen.note(line)
        with slowdown.shaped(made.hardware.link_divisor):
            sweep.run()
            if certify:
                opened.append(certify(sweep, screen))
    except (Interrupted, SilentRanks) as stop:
        by_launcher = isinstance(stop, Interrupted) and stop.by_launcher
        ending = ending._replace(event=_event(stop, sweep, made), by_launcher=by_launcher)
        raise
    finally:
        code = _end(opened, header, sweep.records, screen, ending)
    failed = any(not isinstance(record.outcome, Finished) for record in kept(sweep.records))
    return 1 if failed or (sweep.burn_in and sweep.burn_in.failures) else code


def _end(opened: store.Store, header: Header, records: Sequence[PointRecord], screen: View, ending: Ending) -> int:
    """Close the view, then conclude, past mpirun's pipe if mpirun may be ending; return the exit code."""
    past_mpirun = launcher_output() if ending.by_launcher else None
    output: TextIO = past_mpirun or sys.stdout
    screen.closed(output)
    drawn = screen if isinstance(screen, live.LiveView) else None
    ending = ending._replace(color=drawn is not None, width=drawn.columns if drawn else terminal_width())
    output = ending.hidden.stream(output) if ending.hidden else output
    conclude = partial(_conclude, opened, header, records, output, ending)
    return beyond_the_launcher(conclude) if past_mpirun else conclude()


class _HiddenView(PlainView):
    """The plain view without names: the live view cuts names, and a cut name cannot be replaced."""

    def __init__(self, stream: TextIO, hidden: Disguise) -> None:
        super().__init__(hidden.stream(stream))
        self._hidden = hidden

    def finished(self, record: PointRecord, rows: Sequence[Row], number: int, total: int) -> None:
        super().finished(self._hidden.of(record), rows, number, total)


def _prepare() -> None:
    """Import what the last table needs; after Ctrl-C there is little time."""
    for module in ("scipy.optimize", "scipy.special", "scaling.report.formats.screen"):
        import_module(module)


def _event(stop: Interrupted | SilentRanks, sweep: Sweep, made: Plan) -> str:
    """Return `interrupted after 5 of 15 points; these are kept`."""
    why = f"{stop}; ended" if isinstance(stop, SilentRanks) else "interrupted"
    if sweep.burn_in:
        return f"{why} after {sweep.burn_in}; these are kept"
    finished = sum(isinstance(record.outcome, Finished) for record in kept(sweep.records))
    return f"{why} after {finished} of {counted(len(made.cells) * made.rounds, 'point')}; these are kept"


def _conclude(
    opened: store.Store,
    header: Header,
    records: Sequence[PointRecord],
    output: TextIO,
    ending: Ending,
) -> int:
    """Write the page and print the screen of the file, or of `records` if the file is lost, then compare.
    Returns the exit code. Raises Interrupted on a signal after the screen."""
    stream = Stream(output)
    try:
        material = _kept(opened, stream)
    except (StoreError, UsageError) as error:
        why = str(error).removeprefix(f"{opened.folder}: ")
        material = Material(header, records)
        _give(material, Place("", event=f"not kept: {opened.folder}"), stream, ending)
        stream.write(f"{material.doc.last_line}\n")
        ending.complain(StoreError(f"{opened.folder}: lost during the run ({why}); only the table is left"))
        return StoreError.exit_code
    opened.close()
    early = bool(ending.event)
    page = str(opened.folder / PAGE_FILE) if ending.asked.page else ""
    stopped: Interrupted | None = None
    try:
        if page and not early:
            page = _write_page(opened.folder, ending)
    except Interrupted as stop:  # the answer is printed all the same
        stopped, page = stop, ""
    _give(material, Place(str(opened.folder), page, material.lacks or early, ending.event), stream, ending)
    try:
        base = None if early or stopped else ending.asked.against
        code = _compare(base, opened.folder, stream, ending) if base else 0
    finally:
        stream.write(f"{material.doc.last_line}\n")
        stream.flush()
    if stopped:
        raise stopped
    if page and early:  # the answer is first: there may be no time for a page
        _write_page(opened.folder, ending)
    return code


def _kept(opened: store.Store, stream: Stream) -> Material:
    """Read back what the run's file has. Raises StoreError or UsageError if it is lost."""
    if said := opened.secure():
        stream.write(f"{said}\n")
    return Material.of(store.read(opened.folder))


def _write_page(folder: Path, ending: Ending) -> str:
    """Return the page's path; "" if it was not written."""
    try:
        return str(write_page(folder, ending.look, anonymous=ending.hidden is not None))
    except StoreError as error:
        ending.complain(error)
        return ""


def _give(material: Material, place: Place, stream: Stream, ending: Ending) -> None:
    """Print the answer and write the metrics, without the names that `--anonymous` leaves out."""
    if ending.hidden:
        material, place = ending.hidden.material(material), ending.hidden.place(place)
    _print(material, place, stream, ending)
    if ending.asked.metrics:
        try:
            deliver(openmetrics.render(material), ending.asked.metrics, "--metrics")
        except UsageError as error:
            ending.complain(error)


def _print(material: Material, place: Place, stream: Stream, ending: Ending) -> None:
    """Print the last screen, or all tables and the run's place, without the line for programs."""
    from scaling.report.formats import screen, terminal

    if ending.asked.verbose:
        text = f"{terminal.draw(material.doc, color=ending.color)}\n" + "".join(
            f"{line}\n" for line in filter(None, (ending.event, *screen.footer(material, place)))
        )
    else:
        text = screen.render(material, place, width=ending.width, color=ending.color)
    stream.write(text)
    stream.flush()


def _compare(base: Path, new: Path, stream: Stream, ending: Ending) -> int:
    """Return the exit code; it is never 0 without a verdict."""
    try:
        found = programs.compared(base, new, ending.look, require_proof=ending.asked.require_proof)
    except ScalingError as error:
        ending.complain(error)
        return error.exit_code
    stream.write(found.text)
    if found.why:
        ending.complain(UsageError(found.why))
    return found.code
