"""What torch.distributed really sends in a step against what its strategies expect, which receipts are held to."""

from __future__ import annotations

from itertools import count

import pytest

from scaling.records.point import EXCHANGING
from scaling.workloads import models
from tests.support import ranks
from tests.support.counted_bytes import counted
from tests.support.labs import needs_lab

pytest.importorskip("torch", exc_type=ImportError)
pytestmark = needs_lab

Ways = tuple[tuple[str, dict[str, str], float], ...]
# With what they send over what all-reduces of all gradients send in a ring of four ranks.
FEW: Ways = (
    ("torch:gloo", {}, 1.0),
    ("torch:gloo", {"compress": "fp16"}, 0.5),
    ("torch:gloo", {"shard_optimizer": "true"}, 1.5),
    ("torch:fsdp2", {}, 2.0),
    ("torch:fsdp2", {"hsdp": "2"}, 10 / 6),
)
OTHERS: Ways = (
    ("torch:gloo", {"shard_optimizer": "true", "compress": "fp16"}, 1.0),
    ("torch:fsdp2", {"reshard": "false"}, 1.5),
    ("torch:fsdp2", {"hsdp": "2", "reshard": "false"}, 8 / 6),
    ("torch:fsdp2", {"param_dtype": "bf16"}, 1.5),
    ("torch:fsdp2", {"accumulate": "2"}, 3.0),
)
SIZE = 4


@pytest.mark.parametrize("ways", [FEW, pytest.param(OTHERS, marks=pytest.mark.matrix)], ids=["few", "others"])
def test_four_ranks_send_what_their_strategy_expects(ways: Ways) -> None:
    """More by the loopback's framing and by ten rows padded to twelve, both under 1 % of the default model."""
    ports = count(5000)
    cases = [(*way, kind) for way in ways for kind in EXCHANGING]
    points = [
        ranks.tasks(
            name, kind, SIZE, ports=ports, options=options,
            precision="bf16" if "param_dtype" in options else "fp32",
        )
        for name, options, _, kind in cases
    ]  # fmt: skip
    ring = 2 * (SIZE - 1) * 4 * models.spec("digits-cnn").parameters
    for (name, options, factor, kind), (sent, bounds) in zip(cases, counted(points), strict=True):
        told = f"{name} {options} {kind}: {sent / ring:.3f} of a ring's bytes"
        assert bounds == pytest.approx((factor * ring, factor * ring)), told
        assert 1 <= sent / bounds[0] < 1.02, told
