"""Parents and children as the kernel knows them: what happens to a process when its parent dies (prctl(2))."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def signal_at_parents_death(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent dies; its own forks do not inherit that."""
    _set(_PR_SET_PDEATHSIG, number)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies.

    The thread that watches the lifeline cannot run while an import hangs, or while a framework holds Python's lock
    until its peers answer.
    """
    signal_at_parents_death(signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans, which waits for them as for all its children.

    Some programs start others with SIGCHLD ignored: then the kernel reaps children, and nobody learns how they
    ended (sigaction(2)).
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _set(_PR_SET_CHILD_SUBREAPER, 1)


def _set(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
