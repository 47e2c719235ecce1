"""DistributedDataParallel on the agent's side: environment, what is missing, options."""

from __future__ import annotations

import msgspec
import pytest

from scaling.errors import UsageError
from scaling.frameworks.base import read_options
from scaling.frameworks.pytorch import ddp, plain
from scaling.records.point import Kind
from tests.support import paper_tasks
from tests.support.points import placed

STRATEGY = ddp.STRATEGY


@pytest.mark.parametrize("name", STRATEGY.names)
@pytest.mark.parametrize("kind", ["exchange", "comm"])
def test_environ(name: str, kind: Kind) -> None:
    _, task = paper_tasks.tasks(name, kind, 2, ports=(5001,))
    task = msgspec.structs.replace(placed(task, ["10.0.0.1", "10.0.0.2"], "ib0"), local_rank=0)
    assert STRATEGY.environ(task, {}) == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "5001",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "GLOO_SOCKET_IFNAME": "ib0",
    }


def test_traits() -> None:
    for name in STRATEGY.names:
        found = STRATEGY.traits(name)
        assert (found.ports, found.rank_ports, found.servers) == (1, False, False)
        assert (found.drives, found.synchronous) == ("device", True)


def test_devices() -> None:
    assert STRATEGY.devices("torch:nccl") == ("cuda",)
    assert STRATEGY.devices("torch:gloo") == plain.STRATEGY.devices("torch:plain") == ("cpu", "cuda", "emulated")


def test_there_are_no_helpers() -> None:
    (task,) = paper_tasks.tasks("torch:gloo", "exchange", 1, ports=(5001,))
    assert STRATEGY.helpers(task) == []


def test_micro_batches_need_a_graph_that_is_not_static() -> None:
    """Torch's reducer: INTERNAL ASSERT FAILED, expect_autograd_hooks_."""
    both = paper_tasks.one_task("torch:gloo", "exchange", options={"static_graph": "true", "accumulate": "2"})
    assert (STRATEGY.refuse(both.point) or "").startswith("--option static_graph=true: ")
    for options in ({"static_graph": "true"}, {"static_graph": "true", "accumulate": "1"}, {"accumulate": "2"}):
        assert STRATEGY.refuse(paper_tasks.one_task("torch:gloo", "exchange", options=options).point) is None


def test_options_are_read_from_words() -> None:
    given = {"bucket_cap_mb": "0.5", "static_graph": "true"}
    assert read_options(STRATEGY.options, given) == {
        "bucket_cap_mb": 0.5,
        "gradient_as_bucket_view": False,
        "static_graph": True,
        "compress": "none",
        "shard_optimizer": False,
        "accumulate": 1,
    }
    for text in ("big", "0", "nan", "1e300", "1e-300"):
        with pytest.raises(
            UsageError, match=f"--option bucket_cap_mb={text}: expected number from 0.000001 to 1000000"
        ):
            read_options(STRATEGY.options, {"bucket_cap_mb": text})
