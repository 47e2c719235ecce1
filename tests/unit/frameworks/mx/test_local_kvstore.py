"""MXNet's kvstores of one process before the worker: environment, what is missing, what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.frameworks.base import Traits, read_options
from scaling.frameworks.mx.local_kvstore import STRATEGY
from tests.support.paper_tasks import one_task, tasks

every_name = pytest.mark.parametrize("name", STRATEGY.names)


@every_name
def test_traits_and_devices(name: str) -> None:
    expected = Traits(drives="node", nccl=name == "mxnet:nccl", accuracy=("evaluate", "rate"))
    assert STRATEGY.traits(name) == expected
    assert STRATEGY.devices(name) == (("cuda",) if name == "mxnet:nccl" else ("cpu", "cuda", "emulated"))


def test_environ() -> None:
    """As many threads for sums over contexts as all contexts have."""
    task = replace(tasks("mxnet:local", "exchange", 4)[0], threads=3)
    assert STRATEGY.environ(task, {}) == {
        "DMLC_ROLE": "worker",
        "MXNET_CPU_WORKER_NTHREADS": "1",
        "MXNET_KVSTORE_REDUCTION_NTHREADS": "12",
    }


def test_gluon_chooses_where_to_update() -> None:
    assert read_options(STRATEGY.options, {}) == {"update_on_kvstore": "auto", "accumulate": 1}


@every_name
def test_there_are_no_helpers(name: str) -> None:
    assert STRATEGY.helpers(one_task(name, "exchange")) == []
