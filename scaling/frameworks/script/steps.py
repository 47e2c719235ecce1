"""Steps of a script, by the optimizers that step: the shortest cycle of optimizers that repeats."""

from __future__ import annotations

# A cycle counts once it has repeated so often. Longer ones are not looked for.
REPEATS = 3
MOST = 4096
# After so many events that follow a cycle again, an optimizer was replaced, and the events before are forgotten.
REPLACED = 256


class Cycle:
    """Tells which event of a sequence of optimizers ends a step.

    One optimizer ends a step each time. Of several, the last one of their cycle does, as in adversarial training.
    A sequence that leaves its cycle has another one, which must explain where it left. `lost` counts how often.
    """

    def __init__(self) -> None:
        self._seen: list[int] = []
        self.length = 0
        self.lost = 0
        self._place = 0
        self._since = 0  # events since the last loss

    def ends(self, event: int) -> bool:
        """Add an optimizer's step; return whether it ends a step of the training."""
        self._seen.append(event)
        del self._seen[: -REPEATS * MOST]
        self._since += 1
        if not self.length:
            return self._is_learnt()
        if event != self._seen[-1 - self.length]:
            self.length, self.lost, self._since = 0, self.lost + 1, 0
            return self._is_learnt()
        self._place = (self._place + 1) % self.length
        return self._place == 0

    def _is_learnt(self) -> bool:
        found = len(self._seen)
        for length in range(1, min(MOST, found // REPEATS) + 1):
            last = self._seen[-length:]
            explains = not self.lost or REPEATS * length > self._since or self._since >= REPLACED
            if explains and self._seen[-REPEATS * length :] == last * REPEATS:
                self.length, self._place = length, 0
                return True
        return False
