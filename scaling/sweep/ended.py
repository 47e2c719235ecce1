"""How a child of a point ended, and which failure is the point's cause. Pure.

Agents and workers report evidence; rank 0 decides here, and records, footnotes and exit codes show the result.
Two parts of the evidence come in words, since only their process knows them: a worker names the exception that
it caught (`worker/run_task.py`), and an agent the reason for which it ended a child (`agent/supervisor.py`).
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

from msgspec.structs import replace

from scaling.records.events import Error, Exit, Failed, Finished, Outcome
from scaling.records.point import Record
from scaling.records.task import Task
from scaling.text import signal_name

# How likely another failure brought a cause about; 1 where it is not listed (oom, nan-loss and others). Signals
# come from outside the process, but for those of faults. MXNet and TensorFlow abort when a peer is gone.
DOUBT = {
    "crash": 0,
    "crash(SIGSEGV)": 1, "crash(SIGBUS)": 1, "crash(SIGFPE)": 1, "crash(SIGILL)": 1,
    "error": 2, "nccl": 2, "startup": 2, "hang": 2, "timeout": 2,
    "crash(SIGABRT)": 3, "exit": 3, "no-result": 3,
    "cancelled": 5, "interrupted": 5,
}  # fmt: skip
DOUBT_OF_PEERS_LOST = 4


class Evidence(Record, frozen=True, kw_only=True):
    """All that rank 0 knows of a child's end.

    `error` is the child's last words. `is_done`: a worker's result is in, or a helper has announced itself. `exit`
    is None until the agent has seen the end. `silence` says that nothing is heard of the agent.
    """

    task: Task
    host: str
    error: Error | None = None
    is_done: bool = False
    exit: Exit | None = None
    silence: str = ""

    @property
    def of_worker(self) -> bool:
        """Whether the child trains; others are helpers."""
        return self.task.role == "worker"


class Ending(Record, frozen=True, kw_only=True):
    """How a child ended: `outcome` for its own record, and `failure` of its point, None where it brings none.

    `after_result` is what went wrong once its result was in, which is no failure.
    """

    outcome: Outcome
    failure: Failed | None = None
    after_result: str = ""


NEVER = Failed(cause="no-result", message="never ended")
UNSEEN = Ending(outcome=NEVER)
WELL = Ending(outcome=Finished())


def how_it_ended(evidence: Evidence) -> Ending:
    """Decide how a child ended. The first of these decides:

    1. the silence of its agent;
    2. a worker's result, unless the agent ended it for another reason than being late to leave;
    3. its last words;
    4. the agent's reason, the kernel's out-of-memory killer, a signal or an exit code (`_cause`);
    5. what it left unsaid when it exited with code 0.

    The record of a helper keeps 4 alone.
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
    """Whether a worker's result is in, so that no end is a failure, unless its agent cancelled it."""
    seen, has_result = evidence.exit, evidence.of_worker and evidence.is_done
    return seen is not None and has_result and (seen.reason is None or seen.is_late)


def _cause(seen: Exit) -> Failed | None:
    """The cause as the agent saw it; None for exit code 0.

    An agent's reason counts if the child ended by one of the agent's signals: a child that was killed just before
    takes some milliseconds to die, and its peers notice earlier than its agent.
    """
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
        # A process that writes to shared memory without room ends so: containers have 64 MB of it.
        hint = ", as where /dev/shm is full" if -code == signal.SIGBUS else ""
        return Failed(cause=f"crash({name})", message=f"ended by {name}{hint}{seen.limit}")
    return Failed(cause=f"exit({code})", message=f"exited with code {code}{seen.limit}")


def _unsaid(evidence: Evidence) -> Failed | None:
    """What a child that exited with code 0 should have said before."""
    if evidence.is_done:
        return None
    what = "without a result" if evidence.of_worker else "before it announced itself"
    return Failed(cause="no-result", message=f"exited 0 {what}")


def _located(why: Failed | Error, evidence: Evidence) -> Failed:
    """The failure of a point by one of its children."""
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
    """The cause among all failures of a point; among equally certain ones the first."""
    return min(failures, key=_doubt, default=None)


def _doubt(failed: Failed) -> int:
    if failed.may_follow:
        return DOUBT_OF_PEERS_LOST
    kind = failed.cause.partition("(")[0]
    return DOUBT.get(failed.cause, DOUBT.get(kind, 1))
