"""MXNet's kvstores of one process: that all contexts do the same work, with each option."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from msgspec import json

from scaling.frameworks.mx import local_kvstore, plain
from scaling.plan import tasks
from scaling.records.task import Task
from tests.support import ranks

MISSING = plain.STRATEGY.missing("mxnet:plain")
needs_mxnet = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


def node(name: str = "mxnet:local", size: int = 2, **fields: Any) -> Task:
    (task,) = tasks.worker_tasks(
        ranks.tasks(name, "exchange", size, **fields), local_kvstore.STRATEGY.traits(name)
    )
    return task


EACH_CONTEXT = """
import sys
from msgspec import json
from scaling.frameworks.mx import local_kvstore_trainer
from scaling.records.task import Task
trainer = local_kvstore_trainer.connect(json.decode(sys.argv[1], type=Task))
trainer.step()
print(*(len(set(round(float(each), 5) for each in losses.asnumpy())) for losses in trainer.compute._losses))
print(len({losses.asnumpy().tobytes() for losses in trainer.compute._losses}))
print(trainer.digest() == trainer.digest_on(trainer.contexts[1]))
weight = next(iter(trainer.trained.values())).data(trainer.contexts[1])
weight[0] += 1e-3
try:
    trainer.digest()
except RuntimeError as error:
    print(error)
"""


@needs_mxnet
@pytest.mark.parametrize("name", ["mxnet:local", "mxnet:device"])
def test_a_context_that_differs_is_an_error(name: str) -> None:
    """Contexts see different images, hold the same weights, and digest() is no hash when they do not."""
    command = [sys.executable, "-c", EACH_CONTEXT, json.encode(node(name)).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses, images, same, *error = done.stdout.splitlines()
    assert (losses, images, same) == ("4 4", "2", "True")
    assert error[0].startswith("the devices' parameters differ: {'cpu(0)': '")


@needs_mxnet
@pytest.mark.parametrize("choice", ["true", "false"])
def test_on_one_device_there_is_nothing_to_choose(choice: str) -> None:
    (trained,) = ranks.run(ranks.tasks("mxnet:local", "exchange", 1, options={"update_on_kvstore": choice}))
    assert trained.samples == 4


@needs_mxnet
@pytest.mark.parametrize("options", [{"update_on_kvstore": "false"}, {"accumulate": "2"}])
def test_options_do_not_change_the_update(options: dict[str, str]) -> None:
    (first,) = ranks.run(ranks.tasks("mxnet:device", "exchange", 2))
    (other,) = ranks.run(ranks.tasks("mxnet:device", "exchange", 2, options=options))
    for key, start in first.before.items():
        update = np.linalg.norm(first.after[key] - start)
        assert np.linalg.norm(other.after[key] - first.after[key]) < 1e-3 * update, key
