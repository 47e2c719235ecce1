"""A slow link that is planted in a lab: found, removed and proved, under a real mpirun."""

from __future__ import annotations

import re
from pathlib import Path

from scaling.records import store
from scaling.tools.lab import lifecycle
from tests.support import labs
from tests.support.labs import needs_lab

pytestmark = needs_lab
LIMIT_S = 400.0
# At a quarter of its rate the gradients of a step take a little longer than the step itself.
QUICK = (
    "--device", "emulated:p100", "--model", "resnet50", "--batch-size", "32", "--shrink", "30", "--dilate", "1",
    "--strategy", "torch:gloo", "--interconnect", "eth0", "--rounds", "2", "--windows", "3",
    "--window-s", "0.1", "--noise", "5",
)  # fmt: skip


def test_a_planted_slow_link_is_found_removed_and_proved(tmp_path: Path) -> None:
    with labs.lab("bisect", nodes=4, slots=1, nics=("ib0=100gbit", "eth0=10gbit")) as lab:
        lifecycle.change(lab.name, ["node2.eth0=25%"])
        words = ("-m", "scaling", "bisect", *QUICK, "--results", str(tmp_path))
        done = labs.run(lab, 4, *words, timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\bslow: node2 \(", done.stdout), done.stdout
    found = re.search(r"([\d.]+) -> ([\d.]+) % \(\+.*\) without node2; without node\d: ([\d.]+) %", done.stdout)
    assert found, done.stdout
    before, after, control = map(float, found.groups())
    assert after > 1.2 * before, found[0]
    assert control < (before + after) / 2, found[0]
    (run,) = tmp_path.iterdir()
    assert {record.point.kind for record in store.load(run)[1]} == {"together", "exchange", "comm", "solo"}
