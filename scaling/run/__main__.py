"""main(): connect, enrol, rank 0 parses and sweeps, the others serve; a table of contents.

mpirun -np 16 python -m scaling.run
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TextIO

from scaling import __version__, frameworks
from scaling.agent import child
from scaling.agent.agent import Agent
from scaling.errors import Interrupted, ScalingError
from scaling.hosts import fabric
from scaling.hosts.info import code_hash, gather
from scaling.lab import slowdown
from scaling.plan import config, plan
from scaling.records import store
from scaling.records.events import Finished
from scaling.records.messages import SWEEP_DECODER, Dismiss, Enrol, ToAgent, ToSweep
from scaling.records.run import Header, PointRecord
from scaling.run import flags, listing
from scaling.run.enrolment import NAME, check_same_launch, missing_somewhere, wait_for_all
from scaling.run.header import emulation_setting, make_header
from scaling.run.signals import Signals
from scaling.sweep.sweep import Sweep
from scaling.sweep.view import live
from scaling.sweep.view.plain import Stream
from scaling.transport.base import Cluster
from scaling.transport.launch import as_rank, complain
from scaling.transport.mailbox import Mailbox
from scaling.transport.mpi import launcher_output


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
    missing = {name: reason for name in frameworks.NAMES if (reason := frameworks.load(name).missing(name))}
    agent.enrol(gather(frameworks.distributions()), version=__version__, code=code_hash(), missing=missing)
    if cluster.rank != 0:
        agent.serve()
        return 0
    return _lead(cluster, agent, argv)


def _say(text: str) -> None:
    print(text, flush=True)


# ---------------------------------------------------------------- rank 0


def _lead(cluster: Cluster, agent: Agent, argv: Sequence[str]) -> int:
    """Rank 0: whatever happens, the other agents are dismissed."""
    mailbox = Mailbox[ToAgent, ToSweep](cluster, SWEEP_DECODER, turn=agent.turn, wait=agent.wait)
    try:
        enrolled = wait_for_all(cluster, mailbox)
        return _command(cluster, mailbox, enrolled, argv)
    except flags.Shown:
        return 0
    except ScalingError as error:
        complain(error, NAME)
        return error.exit_code
    except Interrupted as stop:
        return stop.exit_code
    finally:
        mailbox.order_all(Dismiss())
        agent.serve()


def _command(
    cluster: Cluster, mailbox: Mailbox[ToAgent, ToSweep], enrolled: Sequence[Enrol], argv: Sequence[str]
) -> int:
    invocation = flags.parse(argv)
    if invocation.list_all:
        _say(listing.everything(missing_somewhere(enrolled)))
        return 0
    if invocation.resume is not None:
        return _resume(mailbox, enrolled, invocation, invocation.resume)
    base = store.load(invocation.like)[0].config if invocation.like else None
    asked = flags.resolve(invocation, base)
    made = plan.make(asked, enrolled, _fabric(asked), lab_bits_per_s=slowdown.declared())
    if invocation.dry_run:
        _say(listing.dry_run(made, enrolled))
        return 0
    header = make_header(cluster, made, enrolled, argv)
    now = datetime.fromtimestamp(header.created_unix_s)
    with store.Store.create(Path(made.config.results), made.config.name, now, header) as opened:
        return _sweep(made, mailbox, opened, header, (), invocation.view)


def _fabric(asked: config.SweepConfig) -> dict[str, fabric.Entry]:
    return fabric.read(asked.fabric or os.environ.get(fabric.VARIABLE))


def _resume(
    mailbox: Mailbox[ToAgent, ToSweep], enrolled: Sequence[Enrol], invocation: flags.Invocation, run: Path
) -> int:
    header, _ = store.load(run)
    asked = config.build(header.config, source=str(run))
    made = plan.make(asked, enrolled, _fabric(asked), lab_bits_per_s=slowdown.declared())
    check_same_launch(header, enrolled, run)
    if invocation.dry_run:
        _say(listing.dry_run(made, enrolled))
        return 0
    with store.Store.resume(run) as opened:
        records = store.load(run)[1]
        return _sweep(made, mailbox, opened, header, records, invocation.view)


def _sweep(
    made: plan.Plan,
    mailbox: Mailbox[ToAgent, ToSweep],
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
        setting = emulation_setting(made)
        with slowdown.shaped(setting.shrink * setting.dilate):
            Sweep(made, mailbox, opened, screen, records=records, target_half_width=width).run()
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
