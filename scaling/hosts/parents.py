"""Signals at a parent's death, and orphans (prctl(2))."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def signal_at_parents_death(number: signal.Signals) -> None:
    """Ask the kernel for a signal when this process's parent dies; forks do not inherit that."""
    _set(_PR_SET_PDEATHSIG, number)


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies.
    The thread that watches the lifeline cannot run during an import, or while a framework holds the GIL."""
    signal_at_parents_death(signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans.
    With SIGCHLD ignored the kernel would reap children, and their exit codes would be lost (sigaction(2))."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _set(_PR_SET_CHILD_SUBREAPER, 1)


def _set(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
