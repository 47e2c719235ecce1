"""The ranks of a preflight: rank 0 leads it, the others serve until they are released."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil  # type: ignore[import-untyped, unused-ignore]

from scaling.errors import Interrupted, LaunchError
from scaling.tools.check import gather
from scaling.tools.check.facts import LEAD_DECODER, Leave, Left, ToLead, ToRank
from scaling.tools.check.lead import Lead
from scaling.tools.check.prober import Prober
from scaling.transport.base import Cluster, Mailbox
from scaling.transport.launch import Signals

LEAVE_S = 20.0


def age_s() -> float:
    """Return the seconds since this process started."""
    started_unix_s: float = psutil.Process().create_time()
    return time.time() - started_unix_s


def begin(cluster: Cluster, signals: Signals) -> Prober:
    """Report this rank to rank 0, and pass on its signals; then all ranks but 0 `serve`."""
    noted: list[int] = []
    signals.hand_to(noted.append, lambda: bool(noted))
    prober = Prober(cluster, signals=noted)
    prober.say(gather.rank_facts(cluster.library))
    return prober


@contextmanager
def leading(cluster: Cluster, prober: Prober, *, goes_on: bool = False) -> Iterator[Lead]:
    """Lead the preflight and release the other ranks at its end, except after a LaunchError (silent ranks).
    If the launch `goes_on`, wait until all have left: their later messages are of another kind."""
    mailbox = Mailbox[ToRank, ToLead](cluster, LEAD_DECODER, turn=prober.turn, wait=prober.wait)
    lead = Lead(mailbox)
    try:
        yield lead
    except LaunchError:
        raise
    except BaseException as error:
        code = error.exit_code if isinstance(error, Interrupted) else 0
        _release(lead, mailbox, prober, code, goes_on=goes_on)
        raise
    else:
        _release(lead, mailbox, prober, 0, goes_on=goes_on)


def _release(
    lead: Lead, mailbox: Mailbox[ToRank, ToLead], prober: Prober, exit_code: int, *, goes_on: bool
) -> None:
    if not goes_on:
        lead.dismiss(exit_code)
        prober.serve()
        return
    order, others = Leave(exit_code=exit_code, answer=True), range(1, mailbox.size)
    prober.leave(order)
    mailbox.order(others, order)
    mailbox.signalled = None  # it was obeyed, or the launch's next part obeys it
    left = mailbox.answers(Left, others, LEAVE_S) if others else {}
    if silent := ", ".join(str(rank) for rank in others if rank not in left):
        raise LaunchError(f"no answer within {LEAVE_S:g} s after the preflight from ranks {silent}")
    mailbox.order(others, order)
