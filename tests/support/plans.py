"""Plans of one host with GPUs."""

from __future__ import annotations

from typing import Any

from scaling.plan import config, plan, validation
from scaling.plan.plan import Plan
from scaling.records.host import Gpu
from tests.support.inline import enrol, host

GB = 10**9
MODERN = (9, 0)


def gpu(capability: tuple[int, int] | None = MODERN, memory_bytes: int = 80 * GB, index: int = 0) -> Gpu:
    return Gpu(
        index=index, name="GPU", uuid=f"GPU-{index}", memory_bytes=memory_bytes, compute_capability=capability
    )


def made(*gpus: Gpu, **fields: Any) -> Plan:
    ranks = [enrol(host(cores=16, memory_bytes=1 << 40, gpus=gpus))] * max(1, len(gpus))
    given = {"strategy": ["torch:nccl"], **fields} if gpus else fields
    wanted = config.build(given, source="test")
    validation.validate(wanted)
    return plan.make(wanted, ranks)
