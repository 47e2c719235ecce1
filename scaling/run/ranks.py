"""The ranks of a launch: each runs an agent; rank 0 also leads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from scaling.agent.agent import Agent
from scaling.command import complain, show
from scaling.errors import Interrupted, ScalingError, SilentRanks, UsageError
from scaling.hosts import networks, proc
from scaling.plan import config, plan, rules
from scaling.records import store
from scaling.records.messages import SWEEP_DECODER, Dismiss, Enrol, ToAgent, ToSweep
from scaling.records.run import Header
from scaling.report.anonymous import Disguise
from scaling.run import NAME, enrolment, listing, measuring, programs
from scaling.run.enrolment import make_header
from scaling.run.invocation import Invocation, inherited, resolve
from scaling.sweep.sweep import More
from scaling.text import signal_name
from scaling.tools.lab import slowdown
from scaling.transport.base import SILENT_S, Cluster, Mailbox
from scaling.transport.launch import NAMED, Signals, abort
from scaling.transport.mpi import kill_launcher_later


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
        certify: measuring.Certify | None = None,
    ) -> int:
        """Measure the plan as a new run, print and write what `asked` wants; return the exit code."""
        header = self.header(made)
        with self.create(made, header) as opened:
            return measuring.measure(made, self.mailbox, opened, header, asked, more=more, certify=certify)

    def _resume(self, asked: Invocation, run: Path) -> int:
        header, _ = store.load_measured(run)
        enrolment.check_same_launch(header, self.enrolled, run)
        wanted = config.build(header.config, source=str(run))
        made = self.planned(wanted, goes_on=True)
        if asked.dry_run:
            return self.show(made)
        with store.Store.resume(run) as opened:
            found, self.has_run = store.read(run), True
            return measuring.measure(
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
            made = make(fit=programs.batch_tried(made, self.mailbox.look))
        return enrolment.locate(made, self.mailbox, self.enrolled, goes_on=goes_on)

    def proved(self, made: plan.Plan) -> plan.Plan:
        """Return the plan after hosts have connected on its networks. Raises LaunchError."""
        return replace(made, networks=enrolment.prove(self.mailbox, self.enrolled, made.networks))

    def header(self, made: plan.Plan) -> Header:
        """Return the header of a new run of this plan."""
        return make_header(self.cluster, made, self.enrolled, self._argv, self._program)

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
        return inherited(_known(programs.comparable_header(asked.against), f"--against {asked.against}"))
    return inherited(_known(store.load_measured(asked.like)[0], f"--like {asked.like}")) if asked.like else None


def _known(older: Header, given: str) -> dict[str, Any]:
    given_then = {field: value for field, value in older.config.items() if value is not None}
    if unknown := ", ".join(field for field in given_then if field not in config.FIELDS):
        raise UsageError(
            f"{given}: was measured by scaling {older.version} ({older.code}) with settings that this version "
            f"does not know: {unknown}; use that version, or give the settings as flags"
        )
    return {field: value for field, value in older.config.items() if field in config.FIELDS}
