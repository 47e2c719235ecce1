"""The ranks of a launch: each runs an agent. Rank 0 also leads: it plans, measures and ends the run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import msgspec
from msgspec.structs import replace

from scaling import __version__, frameworks
from scaling.agent import environment, strategies
from scaling.agent.agent import Agent
from scaling.agent.environment import child_environ, outside_of_mpi
from scaling.analysis.table.analyse import kept
from scaling.analysis.table.rows import Row
from scaling.command import complain, deliver, show, terminal_width
from scaling.errors import Interrupted, ScalingError, SilentRanks, StoreError, UsageError
from scaling.hosts import networks, proc
from scaling.hosts.info import revision
from scaling.plan import config, plan, rules
from scaling.plan.placement import slots_of
from scaling.plan.tasks import rank_tasks
from scaling.records import store
from scaling.records.burn_in import PointSummary
from scaling.records.events import Finished
from scaling.records.messages import SWEEP_DECODER, Dismiss, Enrol, ToAgent, ToSweep
from scaling.records.point import WANTED
from scaling.records.run import IN_LAB, SCHEMA, Certificate, Header, PointRecord
from scaling.records.task import BatchFit, BatchTrial, Clocks
from scaling.report.anonymous import Disguise, hosts_of
from scaling.report.formats import openmetrics
from scaling.report.material import PAGE_FILE, Material, Place
from scaling.run import NAME, enrolment, listing
from scaling.run.invocation import Invocation, inherited, resolve
from scaling.sweep.sweep import More, Sweep
from scaling.sweep.view import live
from scaling.sweep.view.plain import PlainView, Stream, View
from scaling.text import counted, signal_name
from scaling.tools.lab import slowdown
from scaling.transport.base import SILENT_S, Cluster, Mailbox
from scaling.transport.launch import NAMED, Signals, abort
from scaling.transport.mpi import beyond_the_launcher, kill_launcher_later, launcher_output


def serve(cluster: Cluster, signals: Signals) -> int:
    """Run any rank but 0 until rank 0 dismisses the launch; return the exit code."""
    agent = _agent(cluster, signals)
    agent.serve()
    return agent.exit_code


def _agent(cluster: Cluster, signals: Signals) -> Agent:
    proc.adopt_orphans()
    agent = Agent(cluster, woken_fd=signals.fd)
    signals.hand_to(agent.interrupt, lambda: agent.is_interrupted)
    enrolment.enrol(agent)
    return agent


def lead(
    cluster: Cluster,
    signals: Signals,
    work: Callable[[Lead], int] | int,
    argv: Sequence[str],
    name: str = NAME,
) -> int:
    """Run rank 0: do `work`, or return it if it is an exit code; then dismiss the other agents."""
    agent = _agent(cluster, signals)
    mailbox = Mailbox[ToAgent, ToSweep](
        cluster, SWEEP_DECODER, turn=agent.turn, wait=agent.wait, silent_s=SILENT_S
    )
    over, leading = Dismiss(), None
    try:
        enrolled = enrolment.wait_for_all(mailbox)
        leading = Lead(cluster, mailbox, enrolled, argv, name)
        return work if isinstance(work, int) else work(leading)
    except SilentRanks as error:
        complain(error, name)
        kill_launcher_later()
        abort(cluster, error.exit_code)
        return error.exit_code
    except ScalingError as error:
        complain(error, name)
        return error.exit_code
    except Interrupted as stop:
        if leading is None or not leading.has_run:
            complain("ended before the first point", name, signal_name(stop.number))
        over = Dismiss(exit_code=stop.exit_code)
        return stop.exit_code
    finally:
        mailbox.order_all(over)
        agent.serve()


class Lead:
    """Rank 0 after all ranks have enrolled."""

    def __init__(
        self,
        cluster: Cluster,
        mailbox: Mailbox[ToAgent, ToSweep],
        enrolled: Sequence[Enrol],
        argv: Sequence[str],
        name: str = NAME,
    ) -> None:
        self.cluster = cluster
        self.mailbox = mailbox
        self.enrolled = enrolled
        self._argv = argv
        self._program = NAMED.get(name, name)
        self._hides = False  # --anonymous
        self.has_run = False  # which says how it ended
        mailbox.hosts = [one.host.hostname for one in enrolled]

    def obey(self, asked: Invocation) -> int:
        """List, plan or measure; return the exit code."""
        self._hides = bool({**asked.base, **asked.given}.get("anonymous"))
        try:
            return self._obey(asked)
        except ScalingError as error:
            error.args = (self._shown(str(error)),)
            raise

    def _obey(self, asked: Invocation) -> int:
        if asked.list_all:
            place = enrolment.absolute(asked.given.get("data_dir"))
            self._say(listing.everything(enrolment.missing_somewhere(self.enrolled), self.enrolled, place))
            return 0
        if asked.resume is not None:
            return self._resume(asked, asked.resume)
        wanted = resolve(asked, _settings(asked))
        made = self.planned(wanted, tries=not asked.dry_run)
        plan.check_given(made, asked.given)
        if asked.dry_run:
            return self.show(made)
        return self.measure(self.proved(made), asked)

    def measure(
        self,
        made: plan.Plan,
        asked: Invocation,
        *,
        more: More | None = None,
        certify: Certify | None = None,
    ) -> int:
        """Measure the plan as a new run, print and write what `asked` wants; return the exit code."""
        header = self.header(made)
        with self.create(made, header) as opened:
            return measure(made, self.mailbox, opened, header, asked, more=more, certify=certify)

    def _resume(self, asked: Invocation, run: Path) -> int:
        header, _ = store.load_measured(run)
        enrolment.check_same_launch(header, self.enrolled, run)
        wanted = config.build(header.config, source=str(run))
        made = self.planned(wanted, goes_on=True)
        if asked.dry_run:
            return self.show(made)
        with store.Store.resume(run) as opened:
            found, self.has_run = store.read(run), True
            return measure(
                self.proved(made), self.mailbox, opened, header, asked, found.records, summaries=found.summaries
            )

    def planned(self, wanted: config.SweepConfig, *, goes_on: bool = False, tries: bool = False) -> plan.Plan:
        """Make the plan on the hosts of this launch, for a new run or one that `goes_on`. Raises UsageError.
        `tries`: a GPU may try how large a batch fits."""
        self._hides = wanted.anonymous
        self.enrolled = enrolment.ask_of_outside(self.mailbox, self.enrolled, wanted.strategy or ())
        named = networks.read_fabric(wanted.fabric or os.environ.get(networks.VARIABLE))
        make = partial(plan.make, wanted, self.enrolled, named, lab_bits_per_s=slowdown.declared())
        made = make()
        if tries and rules.grows_batch(wanted, made.device):
            made = make(fit=batch_tried(made, self.mailbox.look))
        return enrolment.locate(made, self.mailbox, self.enrolled, goes_on=goes_on)

    def proved(self, made: plan.Plan) -> plan.Plan:
        """Return the plan after hosts have connected on its networks. Raises LaunchError."""
        return replace(made, networks=enrolment.prove(self.mailbox, self.enrolled, made.networks))

    def header(self, made: plan.Plan) -> Header:
        """Return the header of a new run of this plan."""
        config, lab = made.config, os.environ.get(slowdown.VARIABLE)
        return Header(
            schema=SCHEMA,
            version=__version__,
            code=self.enrolled[0].code,
            git=revision(),
            created_unix_s=time.time(),
            command=tuple(self._argv),
            program=self._program,
            started=f"{self.cluster.said}{IN_LAB}{lab}" if lab else self.cluster.said,
            launch_size=self.cluster.size,
            mpi=self.cluster.library,
            seed=config.seed,
            config=msgspec.to_builtins(config),
            hosts=tuple(enrolment.by_name(self.enrolled).values()),
            host_of_rank=tuple(one.host.hostname for one in self.enrolled),
            device=made.device,
            why_default=made.why,
            estimate_s=made.estimate_s,
            networks=made.networks,
            emulation=listing.emulation(made.hardware, [point.workload for point in made.cells]),
        )

    def create(self, made: plan.Plan, header: Header) -> store.Store:
        """Make the folder and the file of a new run. Raises UsageError."""
        self.has_run, now = True, datetime.fromtimestamp(header.created_unix_s)
        return store.Store.create(Path(made.config.results), made.config.name, now, header)

    def show(self, made: plan.Plan) -> int:
        """Print the plan; return the exit code."""
        self._say(listing.dry_run(made, self.enrolled, self.cluster.said))
        return 0

    def _say(self, text: str) -> None:
        show(f"{self._shown(text)}\n")

    def _shown(self, text: str) -> str:
        return Disguise(self.mailbox.hosts).text(text) if self._hides else text


def _settings(asked: Invocation) -> dict[str, Any] | None:
    if asked.against is not None:
        return inherited(_known(comparable_header(asked.against), f"--against {asked.against}"))
    return inherited(_known(store.load_measured(asked.like)[0], f"--like {asked.like}")) if asked.like else None


def _known(older: Header, given: str) -> dict[str, Any]:
    given_then = {field: value for field, value in older.config.items() if value is not None}
    if unknown := ", ".join(field for field in given_then if field not in config.FIELDS):
        raise UsageError(
            f"{given}: was measured by scaling {older.version} ({older.code}) with settings that this version "
            f"does not know: {unknown}; use that version, or give the settings as flags"
        )
    return {field: value for field, value in older.config.items() if field in config.FIELDS}


# ---------------------------------------------------------------- measuring
# Rank 0 measures the plan, then prints the table of the run's file, also after an error or a signal.

REPORT = "report"
Certify = Callable[[Sweep, View], Certificate]


def measure(
    made: plan.Plan,
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
    for module in ("scipy.special", "scaling.report.formats.screen"):
        import_module(module)  # of the last table: after Ctrl-C there is little time
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
        ending.event = _event(stop, sweep, made)
        ending.by_launcher = isinstance(stop, Interrupted) and stop.by_launcher
        raise
    finally:
        code = ending.end(opened, header, sweep.records, screen)
    failed = any(not isinstance(record.outcome, Finished) for record in kept(sweep.records))
    return 1 if failed or (sweep.burn_in and sweep.burn_in.failures) else code


class _HiddenView(PlainView):
    """The plain view without names: the live view cuts names, and a cut name cannot be replaced."""

    def __init__(self, stream: TextIO, hidden: Disguise) -> None:
        super().__init__(hidden.stream(stream))
        self._hidden = hidden

    def finished(self, record: PointRecord, rows: Sequence[Row], number: int, total: int) -> None:
        super().finished(self._hidden.of(record), rows, number, total)


def _event(stop: Interrupted | SilentRanks, sweep: Sweep, made: plan.Plan) -> str:
    """Return `interrupted after 5 of 15 points; these are kept`."""
    why = f"{stop}; ended" if isinstance(stop, SilentRanks) else "interrupted"
    if sweep.burn_in:
        return f"{why} after {sweep.burn_in}; these are kept"
    finished = sum(isinstance(record.outcome, Finished) for record in kept(sweep.records))
    return f"{why} after {finished} of {counted(len(made.cells) * made.rounds, 'point')}; these are kept"


class Ending:
    """What `asked` wants after the last point: screen, page, file of metrics, comparison.

    `look` raises Interrupted on a signal; `hidden`: the names that `--anonymous` leaves out; `event`: how the run
    ended, if early; `by_launcher`: mpirun may be ending too.
    """

    def __init__(self, asked: Invocation, look: Callable[[], None], hidden: Disguise | None = None) -> None:
        self._asked, self._look, self._hidden = asked, look, hidden
        self.event, self.by_launcher = "", False
        self._stream, self._color, self._width = Stream(sys.stdout), False, 80

    def end(self, opened: store.Store, header: Header, records: Sequence[PointRecord], screen: View) -> int:
        """Close the view, then conclude, past mpirun's pipe if mpirun may be ending; return the exit code."""
        past_mpirun = launcher_output() if self.by_launcher else None
        output: TextIO = past_mpirun or sys.stdout
        screen.closed(output)
        drawn = screen if isinstance(screen, live.LiveView) else None
        self._color, self._width = drawn is not None, drawn.columns if drawn else terminal_width()
        self._stream = Stream(self._hidden.stream(output) if self._hidden else output)
        conclude = partial(self._conclude, opened, header, records)
        return beyond_the_launcher(conclude) if past_mpirun else conclude()

    def _conclude(self, opened: store.Store, header: Header, records: Sequence[PointRecord]) -> int:
        """Write the page and print the screen of the file, or of `records` if the file is lost, then compare.
        Returns the exit code. Raises Interrupted on a signal after the screen."""
        try:
            if said := opened.secure():
                self._stream.write(f"{said}\n")
            found = store.read(opened.folder)
        except (StoreError, UsageError) as error:
            return self._end_without_file(opened.folder, Material(header, records), error)
        opened.close()
        early, material = bool(self.event), Material.of(found)
        page = str(opened.folder / PAGE_FILE) if self._asked.page else ""
        stopped: Interrupted | None = None
        try:
            if page and not early:
                page = self.write_page(opened.folder)
        except Interrupted as stop:  # the answer is printed all the same
            stopped, page = stop, ""
        self._give(material, Place(str(opened.folder), page, material.lacks or early, self.event))
        try:
            base = None if early or stopped else self._asked.against
            code = self._compare(base, opened.folder) if base else 0
        finally:
            self._stream.write(f"{material.doc.last_line}\n")
            self._stream.flush()
        if stopped:
            raise stopped
        if page and early:  # the answer is first: there may be no time for a page
            self.write_page(opened.folder)
        return code

    def _end_without_file(self, folder: Path, material: Material, error: ScalingError) -> int:
        self._give(material, Place("", event=f"not kept: {folder}"))
        self._stream.write(f"{material.doc.last_line}\n")
        why = str(error).removeprefix(f"{folder}: ")
        self._complain(StoreError(f"{folder}: lost during the run ({why}); only the table is left"))
        return StoreError.exit_code

    def write_page(self, folder: Path) -> str:
        """Write the page into the run's folder; return its path, "" if it was not written. In a process of its
        own, so that drawing costs the run neither its exit code nor its memory."""
        path = str(folder / PAGE_FILE)
        arguments = [str(folder), "--format", "html", "--output", path, *(["--anonymous"] if self._hidden else [])]
        try:
            done = command_output(REPORT, arguments, self._look)
            if not done.returncode:
                return path
            again = f"then try: python -m scaling {REPORT} {' '.join(arguments)}"
            why = f"{complaint(done, REPORT)}; {again}"
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        self._complain(StoreError(f"{path}: not written: {why}"))
        return ""

    def _give(self, material: Material, place: Place) -> None:
        """Print the answer and write the metrics, without the names that `--anonymous` leaves out."""
        if self._hidden:
            material, place = self._hidden.material(material), self._hidden.place(place)
        self._print(material, place)
        if self._asked.metrics:
            try:
                deliver(openmetrics.render(material), self._asked.metrics, "--metrics")
            except UsageError as error:
                self._complain(error)

    def _print(self, material: Material, place: Place) -> None:
        """Print the last screen, or all tables and the run's place, without the line for programs."""
        from scaling.report.formats import screen, terminal

        if self._asked.verbose:
            text = f"{terminal.draw(material.doc, color=self._color)}\n" + "".join(
                f"{line}\n" for line in filter(None, (self.event, *screen.footer(material, place)))
            )
        else:
            text = screen.render(material, place, width=self._width, color=self._color)
        self._stream.write(text)
        self._stream.flush()

    def _compare(self, base: Path, new: Path) -> int:
        """Return the exit code; it is never 0 without a verdict."""
        try:
            found = compared(base, new, self._look, require_proof=self._asked.require_proof)
        except ScalingError as error:
            self._complain(error)
            return error.exit_code
        self._stream.write(found.text)
        if found.why:
            self._complain(UsageError(found.why))
        return found.code

    def _complain(self, error: ScalingError) -> None:
        complain(self._hidden.text(str(error)) if self._hidden else error, NAME)


# ---------------------------------------------------------------- programs
# Other commands on a finished run, and a trial of batches before the plan is made. They cost the run no memory.

# Each takes seconds; the timeout is for a file system or font cache that hangs.
PATIENCE_S = 120.0
LOOK_S = 0.1


def command_output(
    command: str, arguments: Sequence[str], look: Callable[[], None] = lambda: None
) -> subprocess.CompletedProcess[str]:
    """Run `scaling COMMAND`; return its output and exit code. Calls `look` meanwhile; if it raises (Ctrl-C), the
    program is killed. Raises OSError or subprocess.TimeoutExpired."""
    environ = {**outside_of_mpi(os.environ), "PYTHONIOENCODING": "utf-8"}
    return awaited([sys.executable, "-m", "scaling", command, *arguments], environ, look)


def awaited(
    argv: Sequence[str],
    environ: Mapping[str, str],
    look: Callable[[], None],
    *,
    given: str = "",
    within_s: float = PATIENCE_S,
) -> subprocess.CompletedProcess[str]:
    """Run a program with `given` on its stdin, as `command_output` does."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environ,
        start_new_session=True,
    ) as process:
        end_s = time.monotonic() + within_s
        try:
            while True:
                look()
                with suppress(subprocess.TimeoutExpired):
                    out, err = process.communicate(given, timeout=LOOK_S)
                    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
                given = ""  # communicate takes the input once
                if time.monotonic() > end_s:
                    raise subprocess.TimeoutExpired(process.args, within_s)
        except BaseException:
            process.kill()
            raise


def complaint(done: subprocess.CompletedProcess[str], command: str) -> str:
    """Return the last line of a program's stderr without its name, or its exit code."""
    why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return why.removeprefix(f"scaling {command}: error: ")


# ---------------------------------------------------------------- a trial of batches
# On a GPU of rank 0's host, if the user gave no batch.

TRIAL_S = 180.0
_FOUND = msgspec.json.Decoder(BatchFit | None)


def batch_tried(made: plan.Plan, look: Callable[[], None]) -> BatchFit | str:
    """Return the largest batch of the plan's model that fits, or why that is unknown. `look` is called
    meanwhile."""
    plain = next((point for point in made.cells if point.kind in ("solo", "each")), made.cells[0])
    baseline = frameworks.load(plain.strategy).baseline
    point = replace(plain, strategy=baseline, kind="solo", world_size=1, options={})
    slots = slots_of(point, made.slots)
    (task,) = rank_tasks(
        point, slots, (), made.networks[0].places,
        attempt=0, retry=0, seed=made.config.seed, clocks=Clocks(), logs="", data_dir=made.config.data_dir or "",
    )  # fmt: skip
    python = environment.python_of(frameworks.running(baseline).name, os.environ)
    environ = child_environ(os.environ, task, strategies.environ(task))
    command = [python, "-m", "scaling.worker.batch_fit"]
    given = msgspec.json.encode(BatchTrial(task=task, memory_bytes=made.gpu_memory_bytes)).decode()
    try:
        done = awaited(command, environ, look, given=given, within_s=TRIAL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trial of larger batches failed: {error}"
    if done.returncode:
        return f"the trial of larger batches failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    return _FOUND.decode(done.stdout.rpartition("\n")[2]) or "not even one batch fits"


# ---------------------------------------------------------------- comparison with an older run (--against RUN)

COMPARE = "compare"
REVISIONS = "a revision is measured in a git worktree of its own; then: python -m scaling compare BASE NEW"
# Exit codes of scaling compare with a verdict: nothing slower, something slower, a cell undecided.
FINE, SLOWER, UNTOLD = 0, 1, 3


class Compared(NamedTuple):
    """The result as text and exit code; `why` is the reason if nothing was compared."""

    text: str
    code: int
    why: str = ""


def comparable_header(run: Path) -> Header:
    """Read the header of the run to compare with.
    Raises UsageError if it cannot be compared, before hours of measuring."""
    try:
        header, records = store.load_measured(run)
    except UsageError as error:
        mend = "" if os.access(run, os.F_OK) else f"; {REVISIONS}"
        raise UsageError(f"--against {error}{mend}") from None
    if store.is_being_written(run):
        raise UsageError(f"--against {run}: is still being written; wait until its sweep has ended")
    if header.config.get("epochs") is not None:
        raise UsageError(f"--against {run}: a training to an accuracy cannot be compared; repeat it with --like")
    if not any(one.point.kind in WANTED and isinstance(one.outcome, Finished) for one in records):
        raise UsageError(f"--against {run}: it has no measured exchange to compare with")
    return header


def compared(
    base: Path, new: Path, look: Callable[[], None] = lambda: None, *, require_proof: bool = False
) -> Compared:
    """Compare two finished runs; call `look` meanwhile. Raises StoreError without a verdict."""
    arguments = [str(base), str(new), *(["--require-proof"] if require_proof else [])]
    command = f"python -m scaling {COMPARE} {' '.join(arguments)}"
    try:
        done = command_output(COMPARE, arguments, look)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"--against {base}: not compared: {error}; try: {command}") from None
    text = f"{done.stdout}\nagainst: {base} (again: {command})\n"
    if done.returncode in (FINE, SLOWER, *([UNTOLD] if require_proof else [])) and done.stdout:
        return Compared(text, done.returncode)
    said = complaint(done, COMPARE).removeprefix("RUN: ")
    why = f"--against {base}: not compared: {said}"
    if done.returncode == UsageError.exit_code:
        return Compared(text if done.stdout else "", UsageError.exit_code, why)
    raise StoreError(f"{why}; try: {command}")
