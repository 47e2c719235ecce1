"""The trial of larger batches as rank 0 runs it: a child that reads its task and answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from scaling.plan import config, plan
from scaling.plan.plan import Plan
from scaling.records.host import Gpu
from scaling.records.task import BatchFit
from scaling.run import ranks
from scaling.worker.batch_fit import MOST
from tests.support.inline import enrol, host

GPU = Gpu(index=0, name="GPU", uuid="GPU-0", memory_bytes=80 * 10**9, compute_capability=(9, 0))


def made(tmp_path: Path, **fields: Any) -> Plan:
    given = {"strategy": ["fake:a"], "device": "cuda", "model": "gpt2-tiny", **fields}
    return plan.make(config.build(given, source="test"), [enrol(host(gpus=(GPU,)))])


def test_the_child_answers(tmp_path: Path) -> None:
    looks: list[None] = []
    found = ranks.batch_tried(made(tmp_path), lambda: looks.append(None))
    (cell, *_) = made(tmp_path).cells
    assert found == BatchFit(batch_size=MOST * cell.workload.batch_size, used_bytes=0)
    assert looks


def test_what_a_strategy_prints_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('loading')\nprint('50 %', end='')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert isinstance(ranks.batch_tried(made(tmp_path), lambda: None), BatchFit)


def test_a_child_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    found = ranks.batch_tried(made(tmp_path), lambda: None)
    assert isinstance(found, str)
    assert found.startswith("the trial of larger batches failed: ")
    monkeypatch.delenv("PYTHONHOME")
    monkeypatch.setattr(ranks, "TRIAL_S", 0.0)
    assert "timed out" in str(ranks.batch_tried(made(tmp_path), lambda: None))


def test_a_signal_ends_the_child(tmp_path: Path) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ranks.batch_tried(made(tmp_path), interrupted)
