"""How a child ended, by everything that rank 0 knows of it."""

from __future__ import annotations

from signal import SIGABRT, SIGBUS, SIGKILL, SIGRTMIN, SIGTERM

import pytest
from msgspec.structs import replace

from scaling.records.events import Error, Exit, Failed, Finished
from scaling.sweep.ended import Ending, Evidence, how_it_ended
from tests.support.points import TASK
from tests.support.supervised import ended_by_agent

OOM = "killed (SIGKILL), probably by the kernel's out-of-memory killer: oom_kill in memory.events rose by 2"
FULL = "; pids.max of the cgroup is 64"
KILLED, ABORTED, CANCELLED = Exit(code=-SIGKILL), Exit(code=-SIGABRT), ended_by_agent("cancelled", "because")
LATE = replace(ended_by_agent("hang", "did not leave its exchange"), is_late=True)
GONE = Error(cause="error", message="RuntimeError: the ring broke", may_follow=True)


def of(role: str = "worker", **known: object) -> Evidence:
    task = replace(TASK, rank=1, hosts=("node1", "node2"), role=role, log="log.1")
    return replace(Evidence(task=task, host="node2"), **known)


@pytest.mark.parametrize(
    ("seen", "cause", "message"),
    [
        (Exit(code=3), "exit(3)", "exited with code 3"),
        (Exit(code=1, limit=FULL), "exit(1)", f"exited with code 1{FULL}"),
        (ABORTED, "crash(SIGABRT)", "ended by SIGABRT"),
        (replace(ABORTED, limit=FULL), "crash(SIGABRT)", f"ended by SIGABRT{FULL}"),
        (Exit(code=-SIGBUS), "crash(SIGBUS)", "ended by SIGBUS, as where /dev/shm is full"),
        (Exit(code=-(SIGRTMIN + 6)), f"crash(signal {SIGRTMIN + 6})", f"ended by signal {SIGRTMIN + 6}"),
        (KILLED, "crash(SIGKILL)", "ended by SIGKILL"),
        (replace(KILLED, oom_kills=2, oom_file="memory.events"), "oom", OOM),
        (replace(ABORTED, oom_kills=2, oom_file="memory.events"), "crash(SIGABRT)", "ended by SIGABRT"),
        (CANCELLED, "cancelled", "because"),
        # Dying already, or out of memory, when its agent sent TERM.
        (replace(CANCELLED, code=-SIGKILL), "crash(SIGKILL)", "ended by SIGKILL"),
        (replace(CANCELLED, code=-SIGKILL, oom_kills=2, oom_file="memory.events"), "oom", OOM),
        (
            replace(CANCELLED, code=-SIGKILL, oom_kills=2, signals=frozenset({SIGTERM, SIGKILL})),
            "cancelled",
            "because",
        ),
        (replace(CANCELLED, code=1), "exit(1)", "exited with code 1"),
        (Exit(is_started=False, reason=Failed(cause="error", message="cannot start")), "error", "cannot start"),
        (Exit(), "no-result", "exited 0 without a result"),
        (replace(CANCELLED, code=0), "no-result", "exited 0 without a result"),
        (None, "no-result", "never ended"),
    ],
)
def test_a_worker_without_result_failed(seen: Exit | None, cause: str, message: str) -> None:
    tail = "" if seen is None or seen.code == 0 else "tail"
    ending = how_it_ended(of(exit=seen and replace(seen, log_tail=tail)))
    failed = Failed(cause=cause, message=message, rank=1, host="node2", log="log.1", log_tail=tail)
    assert ending == Ending(outcome=failed, failure=failed)


@pytest.mark.parametrize("seen", [Exit(code=1), CANCELLED, ABORTED, Exit(), None])
def test_a_workers_last_words_explain_its_end(seen: Exit | None) -> None:
    ending = how_it_ended(of(error=GONE, exit=seen))
    failed = Failed(cause="error", message=GONE.message, rank=1, host="node2", log="log.1", may_follow=True)
    assert ending == Ending(outcome=failed, failure=failed)


@pytest.mark.parametrize(
    ("seen", "after_result"),
    [
        (Exit(), ""),
        (ABORTED, "ended by SIGABRT"),
        (LATE, "did not leave its exchange"),
        (replace(LATE, code=1), "exited with code 1"),
    ],
)
def test_what_a_worker_does_after_its_result_is_no_failure(seen: Exit, after_result: str) -> None:
    assert how_it_ended(of(is_done=True, exit=seen)) == Ending(outcome=Finished(), after_result=after_result)


def test_a_worker_that_is_cancelled_after_its_result_is_cancelled() -> None:
    ending = how_it_ended(of(is_done=True, exit=CANCELLED))
    assert isinstance(ending.outcome, Failed)
    assert (ending.outcome.cause, ending.failure) == ("cancelled", ending.outcome)
    assert how_it_ended(of(is_done=True, exit=replace(CANCELLED, code=0))) == Ending(outcome=Finished())


def test_a_silent_agent_decides_alone() -> None:
    lost = Failed(cause="hang", message="no word for 120 s", rank=1, host="node2")
    assert how_it_ended(of(silence="no word for 120 s", error=GONE)) == Ending(outcome=lost, failure=lost)


def test_a_helper_fails_its_point_in_its_name_and_its_record_says_what_its_agent_saw() -> None:
    for is_done in (False, True):
        ending = how_it_ended(of("server", is_done=is_done, exit=replace(KILLED, log_tail="tail")))
        assert ending.outcome == Failed(
            cause="crash(SIGKILL)", message="ended by SIGKILL", log="log.1", log_tail="tail"
        )
        assert ending.failure == Failed(
            cause="crash(SIGKILL)", message="helper server: ended by SIGKILL",
            rank=1, host="node2", log="log.1", log_tail="tail",
        )  # fmt: skip


def test_a_helper_that_leaves_before_it_announced_itself_fails_its_point() -> None:
    ending = how_it_ended(of("server", exit=Exit()))
    assert (ending.outcome, ending.failure and ending.failure.message) == (
        Finished(),
        "helper server: exited 0 before it announced itself",
    )
    assert how_it_ended(of("server", is_done=True, exit=Exit())) == Ending(outcome=Finished())


def test_a_helpers_last_words_fail_its_point_while_it_still_runs() -> None:
    ending = how_it_ended(of("server", is_done=True, error=GONE))
    assert ending.failure is not None
    assert (ending.failure.message, ending.failure.may_follow) == (f"helper server: {GONE.message}", True)
