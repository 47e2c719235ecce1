"""Who takes part: every rank reports before a sweep begins, runs the same code and says what it lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from scaling import __version__, frameworks
from scaling.agent import interpreters, strategies
from scaling.agent.agent import Agent
from scaling.errors import LaunchError, SilentRanks, UsageError
from scaling.hosts.info import check_names
from scaling.hosts.revision import code_hash
from scaling.records.host import joined_variables
from scaling.records.messages import Ask, Enrol, Missing, ToAgent, ToSweep
from scaling.records.run import Header
from scaling.run.header import by_name
from scaling.transport.mailbox import ENROL_S, Mailbox


def enrol(agent: Agent) -> None:
    """Tell rank 0 of this rank's host, its code and which of the package's strategies cannot run here."""
    lacking, others = strategies.examine((*frameworks.NAMES, *frameworks.BASELINES))
    agent.enrol(interpreters.host_with(others), version=__version__, code=code_hash(), lacking=lacking)


# ---------------------------------------------------------------- rank 0


def wait_for_all(mailbox: Mailbox[ToAgent, ToSweep], within_s: float = ENROL_S) -> tuple[Enrol, ...]:
    """Every rank's enrolment, by rank. Raises SilentRanks when one stays silent, LaunchError on mixed
    code and on two machines of one name."""
    enrolled = mailbox.answers(Enrol, range(mailbox.size), within_s)
    if len(enrolled) < mailbox.size:
        raise SilentRanks(f"only {len(enrolled)} of {mailbox.size} ranks reported within {within_s:g} s")
    by_rank = tuple(enrolled[rank] for rank in sorted(enrolled))
    check_versions(by_rank)
    check_names([one.host for one in by_rank])
    return by_rank


def check_versions(enrolled: Sequence[Enrol]) -> None:
    """Refuse a launch whose ranks run different code; raises LaunchError naming the host."""
    first = enrolled[0]
    for rank, one in enumerate(enrolled):
        if (one.version, one.code) != (first.version, first.code):
            raise LaunchError(
                f"rank {rank} on {one.host.hostname} runs scaling {one.version} (code {one.code}), "
                f"rank 0 on {first.host.hostname} {first.version} (code {first.code}); "
                "install the same version on every host"
            )


def ask_of_outside(
    mailbox: Mailbox[ToAgent, ToSweep],
    enrolled: Sequence[Enrol],
    names: Iterable[str],
    within_s: float = ENROL_S,
) -> tuple[Enrol, ...]:
    """The enrolments with what each rank's host lacks of the strategies from outside among `names`.

    No rank could say it when it enrolled: the command line, which names them, is rank 0's alone. Raises
    SilentRanks when one does not answer.
    """
    outside = tuple(name for name in dict.fromkeys(names) if frameworks.is_outside(name))
    if not outside:
        return tuple(enrolled)
    mailbox.order_all(Ask(strategies=outside))
    answers = mailbox.answers(Missing, range(mailbox.size), within_s)
    if silent := ", ".join(one.host.hostname for rank, one in enumerate(enrolled) if rank not in answers):
        raise SilentRanks(f"{silent}: no answer about {', '.join(outside)} within {within_s:g} s")
    return tuple(
        replace(
            one,
            missing={**one.missing, **answers[rank].missing},
            missing_on_cuda={**one.missing_on_cuda, **answers[rank].missing_on_cuda},
        )
        for rank, one in enumerate(enrolled)
    )


def missing_somewhere(enrolled: Sequence[Enrol]) -> dict[str, str]:
    """By strategy, why it cannot run on one host or another, or not on its GPUs."""
    on_cuda = {name: f"not on GPUs: {why}" for one in enrolled for name, why in one.missing_on_cuda.items()}
    return {**on_cuda, **{name: reason for one in enrolled for name, reason in one.missing.items()}}


def check_same_launch(header: Header, enrolled: Sequence[Enrol], run: Path) -> None:
    """Refuse to go on with a run on other hosts or with other code; raises UsageError saying which."""
    hosts = tuple(one.host.hostname for one in enrolled)
    if hosts != header.host_of_rank:
        raise UsageError(
            f"--resume {run}: was started on {', '.join(header.host_of_rank)}, this launch is on "
            f"{', '.join(hosts)}; start it the same way, or a new run with --like"
        )
    before, now = joined_variables(header.hosts), joined_variables(by_name(enrolled).values())
    if before != now and all(host.variables is not None for host in header.hosts):
        raise UsageError(
            f"--resume {run}: environment variables have changed: {_changes(before, now)}; set them as they were, "
            "or start a new run with --like"
        )
    if enrolled[0].code != header.code:
        raise UsageError(
            f"--resume {run}: was measured by other code ({header.version}, {header.code}) than this "
            f"({__version__}, {enrolled[0].code}); start a new run with --like"
        )


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """`NCCL_ALGO was Ring, is unset`, of all variables that differ."""
    names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    return "; ".join(f"{name} was {before.get(name, 'unset')}, is {now.get(name, 'unset')}" for name in names)
