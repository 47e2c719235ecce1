"""Run a documented launch without a cluster: `python -m tests.support.stand_in_launch ARGV...`.

ARGV is what mpirun, srun or a container's engine was given. The command of this package in it runs whole in one
process: real command line, plan, sweep, records and report, over scripted workers of as many ranks (inline.py).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest import mock

from scaling.command import complain
from scaling.errors import ScalingError
from scaling.hosts import interfaces
from scaling.quiet import agent
from scaling.quiet.canary import Canary
from scaling.records.host import HostInfo
from scaling.records.messages import SWEEP_DECODER, Dismiss, ToAgent, ToSweep
from scaling.run import enrolment, flags
from scaling.run.ranks import Lead
from scaling.sweep import sweep as sweeps
from scaling.sweep.sweep import Sweep
from scaling.tools.bisect import flags as bisect_flags
from scaling.tools.bisect import leading
from scaling.tools.certify import flags as certify_flags
from scaling.tools.certify import leading as certifying
from scaling.tools.check import __main__ as check
from scaling.tools.check import flags as check_flags
from scaling.tools.check.facts import Findings
from scaling.tools.check.verdicts import judge
from scaling.transport import start
from scaling.transport.base import Mailbox
from tests.support import check_facts, stand_ins
from tests.support.guard import STEADY_S
from tests.support.inline import Launch

VERSION = "mpirun (Open MPI) 5.0.11"
SLOTS = 4
BRIEF = ["--rounds", "2", "--soak-s", "0"]
COUNT = re.compile(r"(?:^| )(?:-np|-n|--ntasks|--nproc-per-node|-N \d+ --ntasks-per-node)[ =](\d+)")


def nodes(ranks: int) -> list[HostInfo]:
    """The host of each rank: four ranks to a node, on an InfiniBand and an Ethernet network."""
    made = [check_facts.node(f"node{number}", number) for number in range(1, -(-ranks // SLOTS) + 1)]
    return [made[rank // SLOTS] for rank in range(ranks)]


def sweep(ranks: int, argv: Sequence[str]) -> int:
    """`scaling.run ARGV` on so many ranks, in no more rounds than a table needs."""
    brief = (
        [] if {"--rounds", "--for", "--resume", "--like", "--against", "--epochs", "--list"} & {*argv} else BRIEF
    )
    words = [*argv, *brief, *os.environ.get(stand_ins.FLAGS, "").split()]
    return _led(ranks, argv, lambda lead: lead.obey(flags.parse(words)))


def bisect(ranks: int, argv: Sequence[str]) -> int:
    """`scaling bisect ARGV` on so many ranks."""
    asked = bisect_flags.parse(argv)
    assert asked is not None
    return _led(ranks, argv, lambda lead: leading.bisect(lead, asked))


def judged(ranks: int, argv: Sequence[str]) -> int:
    """`scaling certify ARGV` in its first rounds. Scripted workers send no bytes: NO VERDICT is an end, too."""
    with mock.patch.object(certifying.Judge, "more", lambda *_: False):
        code = certify(ranks, argv)
    return 0 if code in certifying.EXIT_CODES.values() else code


def certify(ranks: int, argv: Sequence[str]) -> int:
    """`scaling certify ARGV` on so many ranks, after the preflight of a sound cluster."""
    asked = certify_flags.parse(argv)
    assert asked is not None
    facts = check_facts.facts([f"node{number}" for number in range(1, max(2, ranks // SLOTS) + 1)], each=SLOTS)
    found = Findings(facts=facts, verdicts=judge(facts), wall_s=12.0)
    work = partial(certifying.certify, asked=asked, found=None if asked.invocation.dry_run else found)
    return _led(ranks, argv, work, "scaling certify")


def _led(ranks: int, argv: Sequence[str], work: Callable[[Lead], int], name: str = "scaling") -> int:
    launch = Launch(ranks, nodes(ranks))
    mailbox = Mailbox[ToAgent, ToSweep](
        launch.hub.rank(0), SWEEP_DECODER, turn=launch.turn, wait=launch.wait, clock=launch.now
    )
    with (
        mock.patch("scaling.run.ranks.Sweep", partial(Sweep, clock=launch.now)),
        mock.patch.object(leading, "Sweep", partial(Sweep, clock=launch.now)),
        mock.patch.object(certifying, "Sweep", partial(Sweep, clock=launch.now)),
        mock.patch.object(enrolment, "prove", lambda _mailbox, _enrolled, networks: networks),
        mock.patch.object(sweeps, "preload"),  # scripted workers import nothing
        mock.patch.object(agent, "tried", lambda _cpus: Canary(STEADY_S)),
        mock.patch.object(interfaces, "read", dict),  # scripted workers send nothing
    ):
        try:
            return work(Lead(launch.hub.rank(0), mailbox, launch.enrolled, argv, name))
        finally:
            mailbox.order_all(Dismiss())
            launch.turn()


def preflight(ranks: int, argv: Sequence[str]) -> int:
    """`scaling check ARGV`: the judgement of a sound cluster that was measured with these flags."""
    asked = check_flags.parse(argv)
    assert asked is not None
    names = [f"node{number}" for number in range(1, max(2, ranks // SLOTS) + 1)]
    lead = mock.Mock()
    lead.found.side_effect = lambda _ranks, words, known: check_facts.facts(
        names, each=SLOTS, words=words, fabric=known
    )
    lead.linked.side_effect = lambda facts, _until: facts
    lead.rated.side_effect = lead.all_reduced.side_effect = lambda facts: facts
    return check._check(lead, asked)


COMMANDS = {
    "scaling.run": sweep, "scaling bisect": bisect, "scaling certify": judged, "scaling check": preflight,
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    if list(argv) == ["--version"]:
        print(VERSION)
        return 0
    at = next((at for at, word in enumerate(argv) if word == "-m" and argv[at + 1].startswith("scaling")), None)
    assert at is not None, f"no command of scaling in {argv}"
    last = at + 1 + (argv[at + 1] == "scaling")
    name = " ".join(argv[at + 1 : last + 1])
    asked = start.asked(argv[last + 1 :])
    count = COUNT.search(" ".join(argv[:at]))
    for file in (word for before, word in pairwise(argv) if before == "--hostfile"):
        assert Path(file).is_file() or file.startswith("/results/"), file
    ranks = asked.ranks or (int(count[1]) if count else 1)
    try:
        if ranks <= SLOTS:
            return COMMANDS[name](ranks, asked.rest)
        # Half of the ranks on as many nodes take half the time.
        with mock.patch.object(sys.modules[__name__], "SLOTS", SLOTS // 2):
            return COMMANDS[name](ranks // 2, asked.rest)
    except flags.Shown:
        return 0
    except ScalingError as error:
        complain(error, name)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
