"""Which turns something else has disturbed, by the canaries before and after them."""

from __future__ import annotations

from collections.abc import Iterable

from scaling.hosts.canary import Canaries, Canary
from scaling.sweep.turns import Turn


class Disturbance:
    """Of the turns of an epoch; canaries are judged by those of the whole sweep."""

    def __init__(self, canaries: Canaries) -> None:
        self._canaries = canaries
        self._newest: dict[int, Turn] = {}  # by launch rank, undisturbed as far as is known

    def found(self, turn: Turn) -> list[Turn]:
        """Those that a turn which was just measured shows to be disturbed: none; or itself; and, if others had its
        cores, the ones before it there, since they may have come within them."""
        told = list(turn.canaries())
        if self._is_disturbed(turn, told):
            before = self._taken_before(turn)
            return [turn, *before] if any(one.is_shared for _, one in told) else [turn]
        if not turn.attempt.state.oversubscribed:  # of which nothing is claimed
            self._newest.update(dict.fromkeys(turn.launch_ranks, turn))
        return []

    def lasts(self, turn: Turn) -> bool:
        """Whether canaries on its cores show a turn that was disturbed that it would be so again."""
        return self._is_disturbed(turn, turn.probed())

    def _is_disturbed(self, turn: Turn, told: Iterable[tuple[int, Canary]]) -> bool:
        company = "alone" if len(turn.ranks) == 1 else "together"
        return self._canaries.disturbed(((rank, company, one) for rank, one in told), again=turn.is_again)

    def _taken_before(self, turn: Turn) -> list[Turn]:
        """The undisturbed ones before it on its cores; before the next one there they no longer are the newest."""
        ranks = turn.launch_ranks
        found = list(dict.fromkeys(one for rank, one in self._newest.items() if rank in ranks))
        self._newest = {rank: one for rank, one in self._newest.items() if one not in found}
        return [one for one in found if not one.attempt.fails]
