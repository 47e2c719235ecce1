"""How a child of a point ended, and which failure is the point's cause.

Agents and workers report evidence, partly in words; rank 0 decides here.
"""

from __future__ import annotations

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
    "error": 2, "nccl": 2, "startup": 2, "hang": 2, "timeout": 2,
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

    @property
    def of_worker(self) -> bool:
        return self.task.role == "worker"


class Ending(Record, frozen=True, kw_only=True):
    """How a child ended: its own `outcome`, and the `failure` of its point, None if it causes none. `after_result`
    is an error after its result, which is no failure."""

    outcome: Outcome
    failure: Failed | None = None
    after_result: str = ""


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
    task, seen = evidence.task, evidence.exit
    if evidence.silence:
        lost = Failed(cause="hang", message=evidence.silence, rank=task.rank, host=evidence.host)
        return Ending(outcome=lost, failure=lost)
    found = _cause(seen) if seen else NEVER
    if _is_excused(evidence):
        return Ending(outcome=Finished(), after_result=found.message if found else "")
    why = evidence.error or found or _unsaid(evidence)
    if why is None:
        return WELL
    failure = _located(why, evidence)
    if evidence.of_worker:
        return Ending(outcome=failure, failure=failure)
    own = replace(found, log=failure.log, log_tail=failure.log_tail) if found else Finished()
    return Ending(outcome=own, failure=failure)


def _is_excused(evidence: Evidence) -> bool:
    """Whether a worker's result is in, which excuses any end unless its agent cancelled it."""
    seen, has_result = evidence.exit, evidence.of_worker and evidence.is_done
    return seen is not None and has_result and (seen.reason is None or seen.is_late)


def _cause(seen: Exit) -> Failed | None:
    """The cause as the agent saw it; None for exit code 0. The agent's reason counts only if its signal ended the
    child: a child killed from outside may die after its peers have failed."""
    code, reason = seen.code, seen.reason
    if reason is not None and (not seen.is_started or -code in seen.signals):
        return reason
    if code == 0:
        return None
    if code == -signal.SIGKILL and seen.oom_kills:
        rise = f"oom_kill in {seen.oom_file} rose by {seen.oom_kills}"
        return Failed(
            cause="oom", message=f"killed (SIGKILL), probably by the kernel's out-of-memory killer: {rise}"
        )
    if code < 0:
        name = signal_name(-code)
        # Writing to shared memory without room ends so: containers have 64 MB of it.
        hint = ", for example because /dev/shm is full" if -code == signal.SIGBUS else ""
        return Failed(cause=f"crash({name})", message=f"ended by {name}{hint}{seen.limit}")
    return Failed(cause=f"exit({code})", message=f"exited with code {code}{seen.limit}")


def _unsaid(evidence: Evidence) -> Failed | None:
    if evidence.is_done:
        return None
    what = "without a result" if evidence.of_worker else "before it announced itself"
    return Failed(cause="no-result", message=f"exited 0 {what}")


def _located(why: Failed | Error, evidence: Evidence) -> Failed:
    task, seen = evidence.task, evidence.exit
    return Failed(
        cause=why.cause,
        message=why.message if evidence.of_worker else f"helper {task.role}: {why.message}",
        rank=task.rank,
        host=evidence.host,
        log=task.log,
        log_tail=seen.log_tail if seen else "",
        may_follow=why.may_follow,
    )


def most_certain(failures: Iterable[Failed]) -> Failed | None:
    """Return the most certain of a point's failures, the first of equally certain ones; None without failures."""
    return min(failures, key=_doubt, default=None)


def _doubt(failed: Failed) -> int:
    if failed.may_follow:
        return DOUBT_OF_PEERS_LOST
    kind = failed.cause.partition("(")[0]
    return DOUBT.get(failed.cause, DOUBT.get(kind, 1))
