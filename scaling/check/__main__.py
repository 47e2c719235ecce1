"""main(): connect, tell of this host; rank 0 leads, judges and prints, the others serve.

mpirun -np 16 python -m scaling.check
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped, unused-ignore]

from scaling.check import gather, words
from scaling.check.facts import Findings
from scaling.check.lead import Lead
from scaling.check.messages import LEAD_DECODER, ToLead, ToRank
from scaling.check.prober import Prober
from scaling.check.verdicts import judge
from scaling.command import complain
from scaling.errors import Interrupted, LaunchError, ScalingError, StoreError
from scaling.hosts import fabric
from scaling.text import as_json, one_line
from scaling.transport.base import Cluster
from scaling.transport.launch import abort, as_rank
from scaling.transport.mailbox import Mailbox
from scaling.transport.signals import Signals

if TYPE_CHECKING:
    from scaling.check import flags

NAME = "scaling.check"
WALL_S = 11.0  # from this process's start to the end of the links: without all-reduces the whole stays below 15 s


def main(argv: Sequence[str] | None = None) -> int:
    """Run this rank; returns the exit code."""
    signals = Signals()
    return as_rank(lambda cluster: _rank(cluster, signals, sys.argv[1:] if argv is None else argv), NAME)


def _rank(cluster: Cluster, signals: Signals, argv: Sequence[str]) -> int:
    noted: list[int] = []
    signals.hand_to(noted.append, lambda: bool(noted))
    prober = Prober(cluster, signals=noted)
    prober.enrol(gather.rank_facts(cluster.library))
    if cluster.rank != 0:
        prober.serve()
        return 0
    try:
        return _lead(cluster, prober, argv)
    except LaunchError as error:
        complain(error, NAME)
        abort(cluster, error.exit_code)  # MPI's own end would wait for the ranks that are silent
        return error.exit_code


def _lead(cluster: Cluster, prober: Prober, argv: Sequence[str]) -> int:
    """Rank 0: whatever happens but silent ranks, the others are let go."""
    from scaling.check import flags  # Typer: rank 0 alone needs it

    lead = Lead(Mailbox[ToRank, ToLead](cluster, LEAD_DECODER, turn=prober.turn, wait=prober.wait))
    try:
        asked = flags.parse(argv)
        return 0 if asked is None else _check(lead, asked)
    except LaunchError:
        raise
    except ScalingError as error:
        complain(error, NAME)
        return error.exit_code
    except Interrupted as stop:
        return stop.exit_code
    finally:
        lead.dismiss()
        prober.serve()


def _check(lead: Lead, asked: flags.Asked) -> int:
    known = fabric.read(asked.fabric)
    if not asked.json:
        lead.say = lambda text: _print(f"check: {one_line(text)}\n")
    facts = lead.measured(lead.enrolled(), asked.interconnect, known, time.monotonic() + WALL_S - _age_s())
    if asked.all_reduce:
        facts = lead.all_reduced(facts)
    found = Findings(facts=facts, verdicts=judge(facts), wall_s=_age_s())
    _print(as_json(found) if asked.json else f"\n{words.render(found)}\n")
    return 1 if found.errors else 0


def _age_s() -> float:
    """Seconds since this process was started."""
    started_unix_s: float = psutil.Process().create_time()
    return time.time() - started_unix_s


def _print(text: str) -> None:
    """What cannot be encoded is replaced, and what nobody takes is dropped. Raises StoreError on a full disk."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # the reader (head, less) has left
            raise StoreError(f"standard output: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
