"""How many files a rank may open: as many as the system lets it, or the launch is refused."""

from __future__ import annotations

import resource

from scaling.errors import LaunchError

# MPI by itself hangs or crashes with a dozen; an agent has several for each point that lives side by side.
LEAST, ENOUGH = 256, 1 << 16


def allow() -> None:
    """Raise this process's own limit (`ulimit -n`) as far as the system lets it. Raises LaunchError where too few
    files are left to it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = limit(soft, hard)
    if allowed != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def limit(soft: int, hard: int) -> int:
    """What the limit is to be; RLIM_INFINITY is below all numbers. Raises LaunchError."""
    endless = resource.RLIM_INFINITY
    if endless not in (soft, hard) and hard < LEAST:
        raise LaunchError(
            f"ulimit -n {hard}: so many files may be open at once, a rank needs {LEAST} at least; raise the limit "
            "(ulimit -Hn, /etc/security/limits.conf, LimitNOFILE of the service that starts it)"
        )
    if soft == endless:
        return soft
    return max(soft, ENOUGH if hard == endless else min(hard, ENOUGH))
