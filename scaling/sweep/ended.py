"""How a child of a point ended, and which failure is the point's cause.

Agents and workers report evidence, partly in words; rank 0 decides here.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from msgspec.structs import replace

from scaling.records.events import Error, Exit, Failed, Finished, Outcome
from scaling.records.point import Record
from scaling.records.task import Task
from scaling.text import signal_name

# The higher, the more likely another failure is the cause; 1 if not listed (oom, nan-loss and others). Other
# signals than those of faults come from outside the process. MXNet and TensorFlow abort when a peer is gone.
DOUBT = {
    "crash": 0,
    "crash(SIGSEGV)": 1, "crash(SIGBUS)": 1, "crash(SIGFPE)": 1, "crash(SIGILL)": 1,
    "error": 2, "nccl": 2, "startup": 2, "hang": 2, "lost": 2, "timeout": 2,
    "crash(SIGABRT)": 3, "exit": 3, "no-result": 3,
    "cancelled": 5, "interrupted": 5,
}  # fmt: skip
DOUBT_OF_PEERS_LOST = 4


class Evidence(Record, frozen=True, kw_only=True):
    """All that rank 0 knows of a child's end. `exit` is None until the agent has seen it; `silence` tells that
    nothing is heard of the agent. `is_done`: a worker's result is in, or a helper has announced itself."""

    task: Task
    host: str
    error: Error | None = None
    is_done: bool = False
    exit: Exit | None = None
    silence: str = ""
    cause: str = "hang"  # of the silence


class Ending(Record, frozen=True, kw_only=True):
    """How a child ended: its own `outcome`, and the `failure` of its point, None if it causes none. `after_result`
    is an error after its result, which is no failure."""

    outcome: Outcome
    failure: Failed | None = None
    after_result: str = ""


# The last word of a library that ends its process: a fatal line of XLA and TensorFlow, or an exception of C++.
FATAL = re.compile(r"^(?:\S+ \S+: F|F\d{4} \S+ +\d+) \S+\] (.+)$|^ +what\(\): +(.+)$", re.MULTILINE)
NEVER = Failed(cause="no-result", message="never ended")
UNSEEN = Ending(outcome=NEVER)
WELL = Ending(outcome=Finished())


def how_it_ended(evidence: Evidence) -> Ending:
    """Decide how a child ended. The first of these decides:

    1. the silence of its agent;
    2. a worker's result, unless its agent ended it for another reason than leaving late;
    3. its own error;
    4. the agent's reason, the kernel's out-of-memory killer, a signal or an exit code (`_cause`);
    5. a missing result or announcement at exit code 0.

    The record of a helper uses 4 alone.
    """
    task, seen, is_worker = evidence.task, evidence.exit, evidence.task.role == "worker"
    if evidence.silence:
        lost = Failed(cause=evidence.cause, message=evidence.silence, rank=task.rank, host=evidence.host)
        return Ending(outcome=lost, failure=lost)
    found = _cause(seen) if seen else NEVER
    if is_worker and evidence.is_done and seen and (seen.reason is None or seen.is_late):
        return Ending(outcome=Finished(), after_result=found.message if found else "")
    why: Failed | Error | None = evidence.error or found
    if why is None:
        if evidence.is_done:
            return WELL
        what = "without a result" if is_worker else "before it announced itself"
        why = Failed(cause="no-result", message=f"exited 0 {what}")
    tail = seen.log_tail if seen else ""
    message = why.message if is_worker else f"helper {task.role}: {why.message}"
    failure = Failed(
        cause=why.cause, message=message, rank=task.rank, host=evidence.host, log=task.log, log_tail=tail,
        may_follow=why.may_follow,
    )  # fmt: skip
    if is_worker:
        return Ending(outcome=failure, failure=failure)
    return Ending(outcome=replace(found, log=task.log, log_tail=tail) if found else Finished(), failure=failure)


def _cause(seen: Exit) -> Failed | None:
    """The cause as the agent saw it; None for exit code 0. The agent's reason counts only if its signal ended the
    child: a child killed from outside may die after its peers have failed."""
    code, reason = seen.code, seen.reason
    if reason is not None and (not seen.is_started or -code in seen.signals):
        return reason
    if code == 0:
        return None
    said = "".join(f": {one[1] or one[2]}" for one in [*FATAL.finditer(seen.log_tail)][:1])
    if code > 0:
        return Failed(cause=f"exit({code})", message=f"exited with code {code}{said}{seen.limit}")
    if code == -signal.SIGKILL and seen.oom_kills:
        rise = f"oom_kill in {seen.oom_file} rose by {seen.oom_kills}"
        message = f"killed (SIGKILL), probably by the kernel's out-of-memory killer: {rise}"
        return Failed(cause="oom", message=message)
    name = signal_name(-code)
    # Writing to shared memory without room ends so: containers have 64 MB of it.
    hint = ", for example because /dev/shm is full" if -code == signal.SIGBUS else ""
    return Failed(cause=f"crash({name})", message=f"ended by {name}{said}{hint}{seen.limit}")


def most_certain(failures: Iterable[Failed]) -> Failed | None:
    """Return the most certain of a point's failures, the first of equally certain ones; None without failures."""

    def doubt(failed: Failed) -> int:
        kind = failed.cause.partition("(")[0]
        return DOUBT_OF_PEERS_LOST if failed.may_follow else DOUBT.get(failed.cause, DOUBT.get(kind, 1))

    return min(failures, key=doubt, default=None)
