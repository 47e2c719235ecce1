"""Rank 0 makes sure that the data is what it is said to be, and that every host has it, before anything starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from scaling import files
from scaling.errors import SilentRanks, UsageError
from scaling.plan import training
from scaling.plan.config import SweepConfig
from scaling.plan.plan import Plan
from scaling.records.messages import Enrol, Locate, Located, ToAgent, ToSweep
from scaling.transport.mailbox import ENROL_S, Mailbox
from scaling.workloads import data, feeds, models, weights_file
from scaling.workloads.data import TRAIN, Split


def absolute(data_dir: str | None) -> str:
    """The folder as every rank can find it, wherever it was started; "" where none was given."""
    return str(Path(data_dir).expanduser().absolute()) if data_dir else ""


def locate(
    made: Plan,
    mailbox: Mailbox[ToAgent, ToSweep],
    enrolled: Sequence[Enrol],
    within_s: float = ENROL_S,
    *,
    goes_on: bool = False,
) -> Plan:
    """The plan with the place of its data, which rank 0's host has whole and all others have as well. Emulated
    devices read none. A run that goes on may have saved its weights already. Raises UsageError naming the flag,
    and the host that lacks it; SilentRanks."""
    config = made.config
    assert config.data is not None
    given = absolute(config.data_dir)
    if not data.spec(config.data).is_read and given:
        raise UsageError(
            f"--data-dir {given}: --data {config.data} lies in no files; leave it out, or name the data"
        )
    if made.device == "emulated":
        return made
    if config.weights:
        weights_file.weights(models.at(made.cells[0]))
    model, parts = models.of(made.cells[0].workload), training.parts(config)
    with files.loading(f"--data-dir {given}" if given else config.data):
        place = feeds.check(config.data, given, model, _splits(config), parts)
    if place:
        _ask_hosts(config.data, place, mailbox, enrolled, within_s)
    saved = _writable(config.save_weights, goes_on)
    return replace(made, config=replace(config, data_dir=place or None, save_weights=saved))


def _writable(path: str | None, goes_on: bool) -> str | None:
    """The file that what was learnt goes to, as every rank can find it; raises UsageError for one that cannot be
    written, or that holds what another run has learnt."""
    if path is None:
        return None
    file = Path(path).expanduser().absolute()
    if not file.parent.is_dir():
        raise UsageError(f"--save-weights {path}: no folder {file.parent}; make it first")
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise UsageError(f"--save-weights {path}: cannot be written there; name another file")
    if os.path.lexists(file) and not goes_on:
        raise UsageError(f"--save-weights {path}: is there already; name another file, or remove it first")
    return str(file)


def _splits(config: SweepConfig) -> tuple[Split, ...]:
    """What is read: what is held out as well where accuracy is asked for."""
    return ("train", "test") if config.epochs else TRAIN


def _ask_hosts(
    name: str, place: str, mailbox: Mailbox[ToAgent, ToSweep], enrolled: Sequence[Enrol], within_s: float
) -> None:
    first = {one.host.hostname: rank for rank, one in reversed(list(enumerate(enrolled)))}
    others = {host: rank for host, rank in sorted(first.items()) if host != enrolled[0].host.hostname}
    mailbox.order(list(others.values()), Locate(data=name, data_dir=place))
    answers = mailbox.answers(Located, others.values(), within_s) if others else {}
    for host, rank in others.items():
        if rank not in answers:
            raise SilentRanks(f"{host}: no answer about --data-dir {place} within {within_s:g} s")
        if why := answers[rank].error:
            raise UsageError(f"{why} (on {host}; {enrolled[0].host.hostname} has it)")
