"""What a child's environment holds."""

from __future__ import annotations

import os

from scaling.agent.child import MARK, child_environ
from tests.support.points import TASK


def test_a_worker_does_not_see_the_launcher() -> None:
    base = {
        "OMPI_COMM_WORLD_RANK": "1",
        "PMIX_RANK": "1",
        "PMI_SIZE": "2",
        "PRTE_X": "",
        "HYDRA_X": "",
        "HOME": "/h",
    }
    environ = child_environ(base, TASK, {"MASTER_ADDR": "127.0.0.1"})
    assert environ["HOME"] == "/h"
    assert environ["MASTER_ADDR"] == "127.0.0.1"
    assert environ["OMP_NUM_THREADS"] == "3"
    assert not [key for key in environ if key.startswith(("OMPI_", "PMI", "PRTE_", "HYDRA_"))]


def test_the_mark_is_this_process() -> None:
    assert MARK not in os.environ
