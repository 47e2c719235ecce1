"""Who takes part: every rank reports before the sweep begins, and all must run the same code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scaling import __version__
from scaling.errors import LaunchError, UsageError
from scaling.records.messages import Enrol, ToAgent, ToSweep
from scaling.records.run import Header
from scaling.transport.base import Cluster
from scaling.transport.launch import complain
from scaling.transport.mailbox import Mailbox


def check_versions(enrolled: Sequence[Enrol]) -> None:
    """Refuse a launch whose ranks run different code; raises LaunchError naming the host."""
    first = enrolled[0]
    for rank, enrol in enumerate(enrolled):
        if (enrol.version, enrol.code) != (first.version, first.code):
            raise LaunchError(
                f"rank {rank} on {enrol.host.hostname} runs scaling {enrol.version} (code {enrol.code}), "
                f"rank 0 on {first.host.hostname} {first.version} (code {first.code}); "
                "install the same version on every host"
            )


NAME = "scaling"


ENROL_S = 60.0


def wait_for_all(cluster: Cluster, mailbox: Mailbox[ToAgent, ToSweep]) -> tuple[Enrol, ...]:
    found: dict[int, Enrol] = {}
    for rank, said in mailbox.news_within(ENROL_S):
        if isinstance(said, Enrol):
            found[rank] = said
        if len(found) == mailbox.size:
            break
    enrolled = tuple(found[rank] for rank in sorted(found))
    if len(enrolled) < cluster.size:
        error = LaunchError(f"only {len(enrolled)} of {cluster.size} ranks reported within {ENROL_S:g} s")
        complain(error, NAME)
        cluster.abort(error.exit_code)  # MPI's own end would wait for the ranks that are missing
        raise error
    check_versions(enrolled)
    return enrolled


def missing_somewhere(enrolled: Sequence[Enrol]) -> dict[str, str]:
    return {name: reason for enrol in enrolled for name, reason in enrol.missing.items()}


def check_same_launch(header: Header, enrolled: Sequence[Enrol], run: Path) -> None:
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
