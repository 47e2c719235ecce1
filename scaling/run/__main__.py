"""main(): connect, enrol, rank 0 parses and sweeps, the others serve; a table of contents.

mpirun -np 16 python -m scaling.run
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TextIO

import msgspec

from scaling import __version__, frameworks
from scaling.agent import child
from scaling.agent.agent import Agent
from scaling.emulated.scale import Setting
from scaling.errors import LaunchError, ScalingError, UsageError
from scaling.hosts import fabric
from scaling.hosts.info import code_hash, gather, git_revision
from scaling.lab import slowdown
from scaling.plan import config, placement, plan
from scaling.records import store
from scaling.records.messages import Enrol
from scaling.records.run import SCHEMA, Finished, Header, PointRecord
from scaling.run import flags, listing
from scaling.sweep.sweep import Sweep
from scaling.sweep.view import live
from scaling.sweep.view.plain import Stream
from scaling.transport.base import Cluster
from scaling.transport.launch import as_rank, complain
from scaling.transport.mailbox import Desk, Interrupted
from scaling.transport.mpi import launcher_output

NAME = "scaling"
ENROL_S = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run this rank; returns the exit code."""
    signals = Signals()
    code = as_rank(lambda cluster: _rank(cluster, signals, sys.argv[1:] if argv is None else argv), NAME)
    _let_go(sys.stdout)
    _let_go(sys.stderr)
    return code


def _let_go(stream: TextIO) -> None:
    """Write what is left; where nobody takes it, it must not fail at the interpreter's exit either."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _rank(cluster: Cluster, signals: Signals, argv: Sequence[str]) -> int:
    child.adopt_orphans()
    agent = Agent(cluster)
    signals.hand_to(agent)
    missing = {name: reason for name in frameworks.TABLE if (reason := frameworks.load(name).missing(name))}
    agent.enrol(gather(), version=__version__, code=code_hash(), missing=missing)
    if cluster.rank != 0:
        agent.serve()
        return 0
    return _lead(cluster, agent, argv)


class Signals:
    """Ctrl-C and SIGTERM, noted from the first moment on. USR1 means Ctrl-C: unlike that, every mpirun hands
    it on to its ranks while it goes on forwarding their output (launch/local sends it)."""

    def __init__(self) -> None:
        self._agent: Agent | None = None
        self._early: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self._agent is None:
            self._early = number
        else:
            self._agent.interrupt(number)

    def hand_to(self, agent: Agent) -> None:
        """From now on the agent is told; also of what came before."""
        self._agent = agent
        if self._early is not None:
            agent.interrupt(self._early)


def _say(text: str) -> None:
    print(text, flush=True)


# ---------------------------------------------------------------- rank 0


def _lead(cluster: Cluster, agent: Agent, argv: Sequence[str]) -> int:
    """Rank 0: whatever happens, the other agents are dismissed."""
    desk = Desk(cluster, turn=agent.turn, wait=agent.wait)
    try:
        enrolled = _enrolled(cluster, desk)
        return _command(cluster, desk, enrolled, argv)
    except flags.Shown:
        return 0
    except ScalingError as error:
        complain(error, NAME)
        return error.exit_code
    except Interrupted as stop:
        return stop.exit_code
    finally:
        desk.dismiss(cluster.size)
        agent.serve()


def _enrolled(cluster: Cluster, desk: Desk) -> tuple[Enrol, ...]:
    enrolled = desk.enrolled(ENROL_S)
    if len(enrolled) < cluster.size:
        error = LaunchError(f"only {len(enrolled)} of {cluster.size} ranks reported within {ENROL_S:g} s")
        complain(error, NAME)
        cluster.abort(error.exit_code)  # MPI's own end would wait for the ranks that are missing
        raise error
    placement.check_versions(enrolled)
    return enrolled


def _command(cluster: Cluster, desk: Desk, enrolled: Sequence[Enrol], argv: Sequence[str]) -> int:
    invocation = flags.parse(argv)
    if invocation.list_all:
        _say(listing.everything(_missing_somewhere(enrolled)))
        return 0
    if invocation.resume is not None:
        return _resume(desk, enrolled, invocation, invocation.resume)
    base = store.load(invocation.like)[0].config if invocation.like else None
    asked = flags.resolve(invocation, base)
    made = plan.make(asked, enrolled, _fabric(asked), lab_bits_per_s=slowdown.declared())
    if invocation.dry_run:
        _say(listing.dry_run(made, enrolled))
        return 0
    header = _header(cluster, made, enrolled, argv)
    now = datetime.fromtimestamp(header.created_unix_s)
    with store.Store.create(Path(made.config.results), made.config.name, now, header) as opened:
        return _sweep(made, desk, opened, header, (), invocation.view)


def _fabric(asked: config.SweepConfig) -> dict[str, fabric.Entry]:
    return fabric.read(asked.fabric or os.environ.get(fabric.VARIABLE))


def _missing_somewhere(enrolled: Sequence[Enrol]) -> dict[str, str]:
    return {name: reason for enrol in enrolled for name, reason in enrol.missing.items()}


def _resume(desk: Desk, enrolled: Sequence[Enrol], invocation: flags.Invocation, run: Path) -> int:
    header, _ = store.load(run)
    asked = config.build(header.config, source=str(run))
    made = plan.make(asked, enrolled, _fabric(asked), lab_bits_per_s=slowdown.declared())
    _same_launch(header, enrolled, run)
    if invocation.dry_run:
        _say(listing.dry_run(made, enrolled))
        return 0
    with store.Store.resume(run) as opened:
        records = store.load(run)[1]
        return _sweep(made, desk, opened, header, records, invocation.view)


def _same_launch(header: Header, enrolled: Sequence[Enrol], run: Path) -> None:
    hosts = tuple(enrol.host.hostname for enrol in enrolled)
    if hosts != header.host_of_rank:
        raise UsageError(
            f"--resume {run}: was started on {', '.join(header.host_of_rank)}, this launch is on "
            f"{', '.join(hosts)}; start it the same way, or a new run with --like"
        )
    if enrolled[0].code != header.code:
        raise UsageError(
            f"--resume {run}: was measured by other code ({header.version}, {header.code}) than this "
            f"({__version__}, {enrolled[0].code}); start a new run with --like"
        )


def _header(cluster: Cluster, made: plan.Plan, enrolled: Sequence[Enrol], argv: Sequence[str]) -> Header:
    hosts = {enrol.host.hostname: enrol.host for enrol in enrolled}
    return Header(
        schema=SCHEMA,
        version=__version__,
        code=enrolled[0].code,
        git=git_revision(),
        created_unix_s=time.time(),
        command=tuple(argv),
        launch_size=cluster.size,
        mpi=cluster.library,
        seed=made.config.seed,
        config=msgspec.to_builtins(made.config),
        hosts=tuple(hosts.values()),
        host_of_rank=tuple(enrol.host.hostname for enrol in enrolled),
        device=made.device,
        why_default=made.why,
        estimate_s=made.estimate_s,
        networks=made.networks,
        emulation=slowdown.told(
            made.config.device, made.config.model or "", made.config.batch_size, _setting(made)
        ),
    )


def _setting(made: plan.Plan) -> Setting:
    """What emulated devices' links are slowed by; 1 for others."""
    return Setting(shrink=made.config.shrink or 1.0, dilate=made.config.dilate or 1.0)


def _sweep(
    made: plan.Plan,
    desk: Desk,
    opened: store.Store,
    header: Header,
    records: Sequence[PointRecord],
    kind: flags.ViewKind,
) -> int:
    """Measure; then print the table of the file just written, also after an error or a signal."""
    from scaling.report.formats import terminal  # rich: rank 0 alone needs it

    screen = live.make(kind, sys.stdout)
    output: TextIO = sys.stdout
    try:
        screen.opened(header, len(made.cells) * made.config.rounds)
        width = config.target_half_width(made.config)
        with slowdown.shaped(_setting(made)):
            Sweep(made, desk, opened, screen, records=records, target_half_width=width).run()
    except Interrupted as stop:
        if stop.by_launcher:
            output = launcher_output() or output
        raise
    finally:
        screen.closed(output)
        header, kept = store.load(opened.folder)
        last = Stream(output)
        last.write(terminal.render(header, kept, color=kind == "live") + "\n")
        last.write(f"run: {opened.folder}\n")
        last.flush()
    return 1 if _failures(kept) else 0


def _failures(records: Sequence[PointRecord]) -> int:
    latest = {record.point.key: record for record in records}
    return sum(not isinstance(record.outcome, Finished) for record in latest.values())


if __name__ == "__main__":
    sys.exit(main())
