"""What is not loaded where it is not needed: start-up is time, and frameworks change the process they are in."""

from __future__ import annotations

import subprocess
import sys

import pytest

FRAMEWORKS = {"torch", "torchvision", "tensorflow", "mxnet", "horovod"}
GATHER = """
from scaling import frameworks
from scaling.hosts.info import gather
gather(frameworks.distributions())
"""


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import scaling.sweep.view.live", {"rich"}),
        ("from scaling.workloads.feeds.digits import load; load(9, 9)", {"sklearn"}),
        ("from scaling.workloads import feeds", {"numpy"}),
        (GATHER, {*FRAMEWORKS, "mpi4py", "numpy"}),
        ("import scaling.tools.check.__main__", {*FRAMEWORKS, "rich", "typer", "scipy"}),
    ],
    ids=["view", "digits", "list-of-data", "hosts", "check"],
)
def test_what_is_not_loaded(code: str, absent: set[str]) -> None:
    tell = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "scaling" in loaded
    assert not absent & loaded
