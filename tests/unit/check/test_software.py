"""Which packages must be equal on all nodes, and what mends it where they are not."""

from __future__ import annotations

import pytest

from tests.support.check_facts import facts, only


@pytest.mark.parametrize(
    ("name", "level", "mend"),
    [
        ("torch", "error", "pip install torch==VERSION on every node"),
        ("nccl", "error", "./launch/install anew on every node"),
        ("horovod (mxnet)", "error", "./launch/install anew on every node"),
        ("triton", "warning", "pip install triton==VERSION on every node"),
    ],
)
def test_what_one_node_alone_has(name: str, level: str, mend: str) -> None:
    verdict = only(facts(hosts={"node2": {"versions": {name: "1"}}}))
    assert (verdict.level, verdict.topic) == (level, "versions")
    assert verdict.text == f"{name}: missing on node1, node3, node4; 1 on node2"
    assert verdict.mend.startswith(mend)
