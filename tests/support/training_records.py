"""Records of trainings to an accuracy, of known seconds and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from scaling.records.events import Evaluated, Failed, Finished, Window
from scaling.records.point import LrScale, Regime
from scaling.records.run import PointRecord, RankRecord
from tests.support.points import POINT

HELD_OUT = 400


def training_record(
    top1: Sequence[float], *, seed: int = 0, size: int = 1, rule: LrScale = "none", rate: float = 0.1,
    target: float | None = None, failed: str = "", **fields: Any,
) -> PointRecord:  # fmt: skip
    """A training whose epochs take 2 s on rank 0 and 0.1 s more on each rank after it, and 1 s of evaluation."""
    regime = Regime(
        epochs=len(top1), seed=seed, rate=rate, base_rate=0.1, base_batch=32, lr_scale=rule, target_top1=target
    )
    point = replace(POINT, kind="train", world_size=size, regime=regime)
    ranks = tuple(_rank(rank, size, top1) for rank in range(size))
    return PointRecord(
        point=point, outcome=Failed(cause=failed, message="") if failed else Finished(), ranks=ranks,
        started_unix_s=0.0, wall_s=10.0, startup_s=1.0, measured_s=5.0, **fields,
    )  # fmt: skip


def _rank(rank: int, size: int, top1: Sequence[float]) -> RankRecord:
    seen = HELD_OUT // size
    windows = [
        Window(
            index=number, measured=True, steps=10, samples=320, start_s=10.0 * number,
            end_s=10.0 * number + 2 + 0.1 * rank, end_unix_s=0.0,
        )
        for number in range(len(top1))
    ]  # fmt: skip
    evaluations = [
        Evaluated(
            number=number, seen=seen, correct=round(share * seen), start_s=0.0, end_s=1.0,
            confusion=((round(share * seen), seen - round(share * seen)), (0, 0)),
        )
        for number, share in enumerate(top1)
    ]  # fmt: skip
    return RankRecord(
        rank=rank, launch_rank=rank, host="a", outcome=Finished(), windows=tuple(windows),
        evaluations=tuple(evaluations),
    )  # fmt: skip
