"""Faults of real workers, helpers and strategies: each costs its point alone."""

from __future__ import annotations

import errno
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from scaling.agent.agent import Agent
from scaling.errors import Interrupted
from scaling.records import store
from scaling.records.events import Failed, Finished
from scaling.records.messages import Reserve
from scaling.records.network import NcclChoice
from scaling.records.run import PointRecord
from scaling.report.formats import terminal
from scaling.sweep.state import PointState
from scaling.sweep.view.plain import View
from tests.support import faulty, telling
from tests.support.children import nothing_left
from tests.support.inline import Launch, Run

# Each fault planted in a real worker process: the point fails with its cause, the sweep goes on, nothing is left
# running. The ranks live in this process, the workers do not.

QUICK: dict[str, Any] = {"rounds": 1, "windows": 3, "kinds": ["exchange"], "window_s": 0.01}


def options(**script: object) -> list[str]:
    return [f"fake:a.{key}={value}" for key, value in {"step_s": 0.002, **script}.items()]


def run(tmp_path: Path, size: int = 2, **script: object) -> Run:
    """A sweep of worlds 1 and `size` whose exchange at `size` fails by the script."""
    fields: dict[str, Any] = {
        key: script.pop(key) for key in list(script) if key in ("stall_timeout_s", "startup_timeout_s")
    }
    launch = Launch(size, real=True)
    return launch.sweep(
        tmp_path, world_sizes=[1, size], option=options(fail_world=size, **script), **{**QUICK, **fields}
    )


def failed(found: Run, size: int = 2) -> tuple[PointRecord, Failed]:
    """The failed point and its cause; the other of the sweep must have been measured."""
    (record,) = found.of(size=size)
    assert isinstance(record.outcome, Failed)
    (other,) = (other for other in found.records if other is not record)
    assert isinstance(other.outcome, Finished)
    nothing_left()
    text = terminal.render(found.header, found.records, color=False)
    assert (" OOM " if record.outcome.cause == "oom" else f"failed: {record.outcome.cause}") in text
    assert record.outcome.message[:40].split(";")[0] in " ".join(text.split())
    return record, record.outcome


@pytest.mark.parametrize(
    ("fault", "cause", "message", "told", "limits"),
    [
        ("raise", "error", "RuntimeError: scripted failure of rank 1", "scripted failure of rank 1", {}),
        ("exit-0", "no-result", "exited 0 without a result", "", {}),
        ("segfault", "crash(SIGSEGV)", "ended by SIGSEGV", "", {}),
        ("bus", "crash(SIGBUS)", "ended by SIGBUS, for example because /dev/shm is full", "", {}),
        ("kill", "crash(SIGKILL)", "ended by SIGKILL", "", {}),
        ("oom", "oom", "MemoryError", "", {}),
        ("nan", "nan-loss", "NanLoss: the loss is nan after warm-up window", "", {}),
        # The others start an interpreter meanwhile, on cores that are shared. Stacks are told.
        ("hang-before-ready", "startup", "", "Current thread", {"startup_timeout_s": 8.0}),
        ("hang", "hang", "", "_hang", {"stall_timeout_s": 1.0}),
    ],
)
def test_a_rank_that_fails_is_the_cause_and_the_other_is_cancelled(
    tmp_path: Path, fault: str, cause: str, message: str, told: str, limits: dict[str, Any]
) -> None:
    record, outcome = failed(run(tmp_path, fail=fault, fail_rank=1, **limits))
    assert (outcome.cause, outcome.rank, outcome.host) == (cause, 1, "node1")
    assert message in outcome.message and told in outcome.log_tail
    assert Path(outcome.log).exists()
    innocent = record.ranks[0].outcome
    assert isinstance(innocent, Failed) and innocent.cause == "cancelled"


@pytest.mark.parametrize("fault", ["print", "fork"])
def test_a_worker_that_prints_5_mb_or_leaves_children_is_measured_all_the_same(tmp_path: Path, fault: str) -> None:
    found = run(tmp_path, fail=fault, fail_rank=1)
    (record,) = found.of(size=2)
    assert isinstance(record.outcome, Finished)
    large = [log.name for log in (found.folder / "logs").iterdir() if log.stat().st_size >= 5 * 1024 * 1024]
    assert [name.endswith(".1.log") for name in large] == [True] * (fault == "print")
    nothing_left()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("hang-leaving", "did not leave its exchange"),
        ("raise-leaving", "exited with code 1"),
        ("abort-leaving", "ended by SIGABRT"),
    ],
)
def test_a_measurement_is_not_lost_to_a_worker_that_cannot_leave_its_exchange(
    tmp_path: Path, fault: str, said: str
) -> None:
    """Its result came first: the point has finished, says so, and nothing of it is left running."""
    found = run(tmp_path, fail=fault, fail_rank=1, stall_timeout_s=1.0)
    (record,) = found.of(size=2)
    assert isinstance(record.outcome, Finished)
    assert all(isinstance(rank.outcome, Finished) and rank.result for rank in record.ranks)
    (warning,) = (one.text for one in record.warnings if "once its result was in" in one.text)
    assert warning.startswith("rank 1 on ") and warning.endswith(said)
    nothing_left()


def test_parameters_that_differ_void_the_point(tmp_path: Path) -> None:
    record, outcome = failed(run(tmp_path, fail="digest", fail_rank=1))
    assert outcome.cause == "digest"
    assert "rank 1 has differs-1" in outcome.message
    assert all(rank.windows for rank in record.ranks)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EMFILE])
def test_ends_are_told_where_the_kernel_gives_no_pidfd(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refused)
    _, outcome = failed(run(tmp_path, fail="segfault", fail_rank=1))
    assert outcome.cause == "crash(SIGSEGV)"


def test_a_port_that_is_taken_twice_fails_the_point(tmp_path: Path) -> None:
    record, outcome = failed(run(tmp_path, fail="port-always"))
    assert outcome.cause == "port-taken"
    assert len(record.retries) == 1


def test_a_helper_serves_its_workers_and_ends_with_the_point(tmp_path: Path) -> None:
    found = run(tmp_path, helper=True)
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    assert "FAKE_SERVER" in found.of(size=2)[0].ranks[1].environ
    nothing_left()


def test_scripted_traffic_is_real_and_takes_the_port_that_was_reserved(tmp_path: Path) -> None:
    bytes_each, before = 3_000_001, loopback_bytes()
    found = run(tmp_path, size=3, traffic_bytes=bytes_each)
    moved = loopback_bytes() - before
    (record,) = found.of(size=3)
    assert isinstance(record.outcome, Finished)
    steps = sum(window.steps for window in (*record.ranks[0].warmup, *record.ranks[0].windows))
    expected = 2 * 2 * bytes_each * steps  # two ranks, there and back
    assert expected <= moved


def loopback_bytes() -> int:
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


def test_a_port_that_somebody_took_meanwhile_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For real: a thief listens on the reserved port of the first attempt before its worker can."""
    thieves: list[socket.socket] = []
    reserve = Agent._reserve

    def robbed(agent: Agent, order: Reserve) -> tuple[int, ...]:
        ports = reserve(agent, order)
        if not thieves:
            thieves.append(socket.create_server((order.address, ports[0])))
        return ports

    monkeypatch.setattr(Agent, "_reserve", robbed)
    launch = Launch(2, real=True)
    options_ = options(traffic_bytes=1000)
    found = launch.sweep(tmp_path, world_sizes=[2], option=options_, **QUICK)
    thieves[0].close()
    (record,) = found.records
    assert isinstance(record.outcome, Finished)
    assert "port-taken" in record.retries[0]


def test_an_agent_that_is_signalled_ends_its_workers(tmp_path: Path) -> None:
    launch = Launch(2, real=True)

    class Interrupting(View):
        def began(self, state: object, number: int) -> None:
            if number == 2:
                launch.agents[1].interrupt(signal.SIGTERM)

    with pytest.raises(Interrupted) as stop:
        launch.sweep(tmp_path, option=options(), view=Interrupting(), **QUICK)
    assert stop.value.exit_code == 143
    for _ in range(200):
        launch.turn()
        launch.wait()
    nothing_left()
    (folder,) = tmp_path.iterdir()
    assert len(store.load(folder)[1]) == 1


# Parameter servers as processes: a killed one, and what they use.


class StrikingHelper(View):
    struck = 0

    def progress(self, state: PointState) -> None:
        if state.phase == "measuring" and state.ranks[0].windows and not self.struck:
            self.struck = state.helpers[0].pid
            os.kill(self.struck, signal.SIGKILL)


def test_a_server_killed_amid_the_windows_fails_its_point_and_the_next_one_runs(tmp_path: Path) -> None:
    launch = Launch(2, real=True)
    found = launch.sweep(
        tmp_path, view=StrikingHelper(), strategy=["fake:ps", "fake:a"], world_sizes=[2],
        **{**QUICK, "windows": 100, "window_s": 0.02},
    )  # fmt: skip
    outcomes = {record.point.strategy: record.outcome for record in found.records}
    failed = outcomes["fake:ps"]
    assert isinstance(failed, Failed)
    assert (failed.cause, failed.message) == ("crash(SIGKILL)", "helper server-0: ended by SIGKILL")
    assert isinstance(outcomes["fake:a"], Finished)
    nothing_left()


def test_what_servers_used_of_the_cpu_is_in_the_record(tmp_path: Path) -> None:
    found = Launch(2, real=True).sweep(
        tmp_path, strategy=["fake:ps-ports"], world_sizes=[2], servers=2, **{**QUICK, "window_s": 0.05}
    )
    (record,) = found.of(size=2)
    assert isinstance(record.outcome, Finished)
    assert [helper.name for helper in record.helpers] == ["server-0", "server-1"]
    assert all(helper.telemetry.cpu_percent is not None for helper in record.helpers)
    assert all(isinstance(helper.outcome, Finished) for helper in record.helpers)
    environ = record.ranks[1].environ
    assert environ["FAKE_SERVER1"] == record.helpers[1].announced["SERVER1"]
    assert len(environ["FAKE_RANK_PORTS"].split(",")) == 2
    ready = record.ranks[0].ready
    assert ready is not None and ready.crossing_bytes_per_step == (0.0, 0.0)  # all on one host
    nothing_left()


# Strategies from outside whose real workers and helpers answer wrongly: their points alone fail, with the hook
# and the type that is wanted.

TOLD = {
    "null": "embedded null byte",
    "bytes": "strategy tests.support.faulty:bytes: bytes_per_step() is of a wrong type: Expected `array | null`",
    "notes": "FakeTrainer.notes is of a wrong type: Expected `array`, got `str`",
    "exits": "SystemExit",
    "announces": "tests.support.faulty:announces: announce() is of a wrong type: Expected `str`, got `int`",
}


def test_a_wrong_answer_costs_its_point_alone(tmp_path: Path) -> None:
    names = {f"{faulty.MODULE}:{mode}": told for mode, told in TOLD.items()}
    run = Launch(1, real=True).sweep(tmp_path, strategy=["fake:a", *names], world_sizes=[1], **QUICK)
    found = {record.point.strategy: record.outcome for record in run.records}
    assert isinstance(found.pop("fake:a"), Finished)
    assert found.keys() == names.keys()
    for name, outcome in found.items():
        assert isinstance(outcome, Failed) and names[name] in outcome.message, (name, outcome)
    nothing_left()


def test_a_wrong_answer_after_the_last_window_costs_a_note(tmp_path: Path) -> None:
    run = Launch(1, real=True).sweep(tmp_path, strategy=[f"{faulty.MODULE}:memory"], world_sizes=[1], **QUICK)
    (record,) = run.of(size=1)
    assert isinstance(record.outcome, Finished)
    told = "FakeTrainer.peak_memory_bytes() is of a wrong type: Expected `int`, got `float`"
    assert any(told in warning.text for warning in record.warnings), record.warnings
    nothing_left()


# What NCCL chose is read by the agent when its worker has ended, and is in the record and the report.


def nccl_log_run(tmp_path: Path) -> Run:
    return Launch(2, real=True).sweep(tmp_path, strategy=[f"{telling.MODULE}:nccl"], world_sizes=[2], **QUICK)


def test_each_rank_s_record_says_what_nccl_chose_there(tmp_path: Path) -> None:
    found = nccl_log_run(tmp_path)
    (record,) = found.of(size=2)
    assert [rank.nccl for rank in record.ranks] == [
        NcclChoice(network="IB", transports={"NET/IB": 1}, gpu_direct=1),
        NcclChoice(network="Socket", transports={"NET/Socket": 1}),
    ]
    assert record.ranks[0].environ["NCCL_DEBUG"] == "INFO"
    text = terminal.render(found.header, found.records, color=False)
    assert "NET/IB with GPUDirect on 1 of 2 connections, NET/Socket" in " ".join(text.split())


def test_a_user_s_own_log_is_left_to_him(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    (record,) = nccl_log_run(tmp_path).of(size=2)
    assert [rank.nccl for rank in record.ranks] == [None, None]
    assert not {"NCCL_DEBUG", "NCCL_DEBUG_FILE"} & record.ranks[0].environ.keys()
