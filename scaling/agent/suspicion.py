"""When an agent looks who else runs: while a core is slow or shared, or others ran on a rank's CPUs beside it."""

from __future__ import annotations

from scaling.quiet.canary import Canaries, Canary

# Of a CPU, in one stretch of windows: two of the kernel's ticks in a tenth of a second.
OTHERS = 0.2


class Suspicion:
    """Whether somebody else may use the CPUs of one rank, over all points of a launch.

    A canary tells who comes and goes. Who is there all the time without being waited for, on the other hyperthread
    of a core say, is found by what the rank's CPUs ran while nothing else of the run did.
    """

    def __init__(self) -> None:
        self._canaries = Canaries()
        self._others = False

    def is_raised(self, found: Canary | None, *, again: bool) -> bool:
        """Whether to look during the windows that come next, before which this canary was tried, `again` after it
        was slow."""
        if found is not None and (self._canaries.disturbed([(0, "", found)], again=again) or found.is_shared):
            return True
        return self._others

    def ran_alone(self, others: float) -> None:
        """A stretch is over in which nothing of the run was beside the rank, and others ran so much of a CPU."""
        self._others = others > OTHERS
