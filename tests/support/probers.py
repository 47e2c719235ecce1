"""Inline ranks of a preflight that start real processes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

from scaling.tools.check.facts import LEAD_DECODER, RankFacts, ToLead, ToRank
from scaling.tools.check.lead import Lead
from scaling.tools.check.prober import Prober
from scaling.transport.base import Hub, Mailbox


class Probers:
    def __init__(self, told: Sequence[RankFacts]) -> None:
        self.told = tuple(told)
        hub = Hub(len(told))
        self.signals: list[list[int]] = [[] for _ in told]
        self.probers = [Prober(hub.rank(rank), signals=self.signals[rank]) for rank in range(hub.size)]
        self.lead = Lead(
            Mailbox[ToRank, ToLead](hub.rank(0), LEAD_DECODER, turn=self.turn, wait=lambda: time.sleep(0.005))
        )

    def turn(self) -> None:
        for one in self.probers:
            one.turn()

    @contextmanager
    def ending(self, process: str) -> Iterator[Lead]:
        """Lead them; afterwards no process of this module runs any more."""
        try:
            yield self.lead
        finally:
            self.lead.dismiss()
            self.turn()
            assert children(process) == []


def children(process: str) -> list[psutil.Process]:
    """Those that run; a zombie that another test left has no command line."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            found += [one] if process in " ".join(one.cmdline()) else []
    return found
