"""`--against REV`: the other revision of the code is found, checked out, and tried on all hosts."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path

from msgspec.structs import replace

from scaling.errors import SilentRanks, UsageError
from scaling.plan.config import SweepConfig
from scaling.plan.plan import Plan
from scaling.records import other_code
from scaling.records.messages import Enrol, ToAgent, ToSweep, Tried, Try
from scaling.run import repositories
from scaling.transport.mailbox import ENROL_S, Mailbox


def settled(config: SweepConfig) -> SweepConfig:
    """The configuration with the commit that `--against` names. Raises UsageError where it names none."""
    if config.against is None:
        return config
    if ":" in config.against:
        raise UsageError(f"--against {config.against}: is no revision; measure two strategies with --strategy A,B")
    for given, what in ((config.epochs, "--epochs"), (config.has_passes or None, "--pass")):
        if given is not None:
            raise UsageError(f"--against {config.against}: compares exchanges; leave out {what}")
    code = repositories.source(config.strategy or (), config.against)
    return replace(config, against=repositories.commit(code, config.against))


@contextmanager
def checked_out(made: Plan, mailbox: Mailbox[ToAgent, ToSweep], enrolled: Sequence[Enrol]) -> Iterator[Plan]:
    """The plan with the folder of the other revision, if it has one; it is removed afterwards.

    Raises UsageError where the folder cannot be made, or workers of that revision cannot be started on some host.
    """
    commit = made.config.against
    if commit is None:
        yield made
        return
    code = repositories.source(made.config.strategy or (), commit)
    archive = repositories.archive(code, commit)
    results = Path(made.config.results).absolute()
    is_new = not results.exists()
    try:
        results.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=f".{other_code.SIGN}{commit[: other_code.DIGITS]}-", dir=results)
    except OSError as error:
        raise UsageError(f"--results {made.config.results}: cannot make a folder: {error.strerror}") from None
    try:
        with tarfile.open(fileobj=BytesIO(archive)) as packed:
            if hasattr(tarfile, "data_filter"):  # Python 3.10.12 and 3.11.4 on
                packed.extraction_filter = tarfile.data_filter
            packed.extractall(folder)
        _try_on_hosts(made, folder, mailbox, enrolled)
        yield replace(made, other_code=folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # a run lies in it, or it is gone
                results.rmdir()


def _try_on_hosts(
    made: Plan,
    folder: str,
    mailbox: Mailbox[ToAgent, ToSweep],
    enrolled: Sequence[Enrol],
    within_s: float = ENROL_S,
) -> None:
    names = {other_code.own(name) for name in made.config.strategy or ()}
    first = {one.host.hostname: rank for rank, one in reversed(list(enumerate(enrolled)))}
    mailbox.order(sorted(first.values()), Try(code=folder, strategies=tuple(sorted(names))))
    answers = mailbox.answers(Tried, first.values(), within_s)
    for host, rank in sorted(first.items()):
        if rank not in answers:
            raise SilentRanks(f"{host}: no answer about --against {made.config.against} within {within_s:g} s")
        if why := answers[rank].error:
            raise UsageError(f"--against {made.config.against}: {why} (on {host})")
