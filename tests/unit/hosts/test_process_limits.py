"""The limit that a fork or a new thread ran into is named with its value, and how to raise it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from scaling.hosts import proc, process_limits
from scaling.worker.run_task import event_of

SYSTEM_ERROR = "Resource temporarily unavailable"
CLEAR = ("can't start new thread", "libgomp: Thread creation failed: x", "OpenBLAS: pthread_create failed")


@pytest.fixture(autouse=True)
def no_ulimit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def pids(root: Path, most: str, used: int) -> Path:
    folder = root / "sys/fs/cgroup/pod"
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/pod/container\n")
    folder.mkdir(parents=True)
    (folder / "pids.max").write_text(f"{most}\n")
    (folder / "pids.current").write_text(f"{used}\n")
    return root


@pytest.mark.parametrize("text", [*CLEAR, SYSTEM_ERROR])
def test_a_reached_limit_is_named_with_its_value_and_the_mend(tmp_path: Path, text: str) -> None:
    said = process_limits.hint(text, pids(tmp_path, "64", 63))
    assert "pids.max of the cgroup is 64, 63 in use" in said
    assert "--pids-limit" in said


@pytest.mark.parametrize(("text", "is_said"), [*((text, True) for text in CLEAR), (SYSTEM_ERROR, False)])
def test_a_limit_that_is_far_away_is_blamed_only_for_what_surely_is_a_thread(
    tmp_path: Path, text: str, is_said: bool
) -> None:
    """A socket says EAGAIN too."""
    assert bool(process_limits.hint(text, pids(tmp_path, "4096", 63))) is is_said


@pytest.mark.parametrize(("text", "most"), [("out of memory", "64"), (SYSTEM_ERROR, "max"), (CLEAR[0], "max")])
def test_other_failures_and_hosts_without_limits_say_nothing(tmp_path: Path, text: str, most: str) -> None:
    assert process_limits.hint(text, pids(tmp_path, most, 64)) == ""


def test_the_users_own_limit_is_named_with_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 200))
    monkeypatch.setattr(process_limits, "_threads", lambda: 98)
    assert "ulimit -u is 100, 98 in use" in process_limits.hint("", tmp_path, is_fork=True)


def test_a_workers_own_words_lead_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "pids", lambda root: iter([(64, 64)]))
    event = event_of(RuntimeError("can't start new thread"))
    assert event.message.startswith("RuntimeError: can't start new thread; pids.max of the cgroup is 64")
    assert not event.may_follow
