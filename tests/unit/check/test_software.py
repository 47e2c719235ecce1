"""Which packages must be equal on all nodes, which overwrite each other, and what mends that."""

from __future__ import annotations

import pytest

from scaling.records.interpreter import Interpreter
from scaling.tools.check.verdicts import judge
from tests.support.check_facts import FOUR, facts, only

NCCL = {"nvidia-nccl-cu13": "2.29.7", "nvidia-nccl-cu12": "2.27.7"}


@pytest.mark.parametrize(
    ("name", "level", "mend"),
    [
        ("torch", "error", "pip install torch==VERSION on every node"),
        ("nvidia-nccl-cu13", "error", "pip install nvidia-nccl-cu13==VERSION on every node"),
        ("horovod (mxnet)", "error", "./launch/install anew on every node"),
        ("triton", "warning", "pip install triton==VERSION on every node"),
    ],
)
def test_what_one_node_alone_has(name: str, level: str, mend: str) -> None:
    verdict = only(facts(hosts={"node2": {"versions": {name: "1"}}}))
    assert (verdict.level, verdict.topic) == (level, "versions")
    assert verdict.text == f"{name}: missing on node1, node3, node4; 1 on node2"
    assert verdict.mend.startswith(mend)


def with_nccl(*packages: str) -> Interpreter:
    """An environment of TensorFlow's own that has these."""
    return Interpreter(
        framework="tensorflow", path="/env", python="3.11", versions={name: NCCL[name] for name in packages}
    )


def test_two_nccls_in_two_environments_are_fine() -> None:
    host = {"versions": NCCL, "interpreters": (with_nccl("nvidia-nccl-cu12"),)}
    assert [one for one in judge(facts(hosts=dict.fromkeys(FOUR, host))) if one.level != "ok"] == []


def test_two_nccls_in_a_frameworks_environment_are_named() -> None:
    host = {"versions": NCCL, "interpreters": (with_nccl(*NCCL),)}
    verdict = only(facts(hosts=dict.fromkeys(FOUR, host)))
    assert "nvidia-nccl-cu13 2.29.7 and nvidia-nccl-cu12 2.27.7 on node1" in verdict.text
