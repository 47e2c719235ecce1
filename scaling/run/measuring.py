"""Rank 0 measures what was planned; then the table of the file just written, also after an error or a signal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from scaling.errors import Interrupted
from scaling.lab import slowdown
from scaling.plan import config
from scaling.plan.plan import Plan
from scaling.records import store
from scaling.records.events import Finished
from scaling.records.messages import ToAgent, ToSweep
from scaling.records.run import Header, PointRecord
from scaling.run.header import emulation_setting
from scaling.run.invocation import ViewKind
from scaling.sweep.sweep import Sweep
from scaling.sweep.view import live
from scaling.sweep.view.plain import Stream
from scaling.transport.mailbox import Mailbox
from scaling.transport.mpi import launcher_output


def measure(
    made: Plan,
    mailbox: Mailbox[ToAgent, ToSweep],
    opened: store.Store,
    header: Header,
    records: Sequence[PointRecord],
    kind: ViewKind,
) -> int:
    """Measure what `records` lack; returns the exit code."""
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
        _print_table(header, kept, opened, output, color=kind == "live")
    return 1 if _failures(kept) else 0


def _print_table(
    header: Header, records: Sequence[PointRecord], opened: store.Store, output: TextIO, *, color: bool
) -> None:
    from scaling.report.formats import terminal  # rich: rank 0 alone needs it

    last = Stream(output)
    last.write(terminal.render(header, records, color=color) + "\n")
    last.write(f"run: {opened.folder}\n")
    last.flush()


def _failures(records: Sequence[PointRecord]) -> int:
    latest = {record.point.key: record for record in records}
    return sum(not isinstance(record.outcome, Finished) for record in latest.values())
