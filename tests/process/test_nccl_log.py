"""What NCCL chose is read by the agent when its worker has ended, and is in the record and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaling.records.network import NcclChoice
from scaling.report.formats import terminal
from tests.support.inline import Launch, Run
from tests.support.talking_nccl import NAME

QUICK: dict[str, Any] = {"rounds": 1, "windows": 3, "kinds": ["exchange"], "window_s": 0.01, "world_sizes": [2]}


def run(tmp_path: Path) -> Run:
    return Launch(2, real=True).sweep(tmp_path, strategy=[NAME], **QUICK)


def test_each_rank_s_record_says_what_nccl_chose_there(tmp_path: Path) -> None:
    found = run(tmp_path)
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
    (record,) = run(tmp_path).of(size=2)
    assert [rank.nccl for rank in record.ranks] == [None, None]
    assert not {"NCCL_DEBUG", "NCCL_DEBUG_FILE"} & record.ranks[0].environ.keys()
