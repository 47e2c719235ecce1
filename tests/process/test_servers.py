"""Parameter servers as processes: a killed one, and what they use."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from scaling.records.events import Failed, Finished
from scaling.sweep.state import PointState
from tests.support.children import nothing_left
from tests.support.inline import Launch

QUICK: dict[str, Any] = {"rounds": 1, "windows": 3, "kinds": ["exchange"], "window_s": 0.01}


class StrikingHelper:
    struck = 0

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args: None

    def progress(self, state: PointState) -> None:
        if state.phase == "measuring" and state.ranks[0].windows and not self.struck:
            self.struck = state.helpers[0].pid
            os.kill(self.struck, signal.SIGKILL)


def test_a_server_killed_amid_the_windows_fails_its_point_and_the_next_one_runs(tmp_path: Path) -> None:
    view: Any = StrikingHelper()
    launch = Launch(2, real=True)
    found = launch.sweep(
        tmp_path, view=view, strategy=["fake:ps", "fake:a"], world_sizes=[2],
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
