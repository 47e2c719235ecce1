"""What an agent and its fork server say to each other."""

from __future__ import annotations

from scaling.records.point import Record

# The variable that names the server's end of the socket.
FORK_FD = "SCALING_FORK_FD"
# The variable by which the descendants of a child are known, unless they drop it.
MARK = "SCALING_CHILD"
# What the server says once its framework is imported.
READY = b"ready"
# Among a server's arguments: what follows may be lacking.
OPTIONAL = "--"
# The longest request: an environment.
MAX_BYTES = 1 << 17


class Request(Record, frozen=True, kw_only=True):
    """Fork a worker with this environment; its commands, its events and its log come as file descriptors. A
    message without any is a worker's pid, to be waited for."""

    environ: dict[str, str]
