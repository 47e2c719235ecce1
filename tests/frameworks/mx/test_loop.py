"""What training on MXNet's kvstores comes to, with each option; and the loop beneath."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import json

from scaling.frameworks.mx.strategies import LocalKvstore
from scaling.plan import tasks
from scaling.records.point import Kind
from scaling.workloads import models
from tests.frameworks.mx import needs_mxnet, said
from tests.support import native_feeds, ranks
from tests.support.rank import Trained

pytestmark = needs_mxnet


def run(name: str, size: int, *, steps: int = 1, kind: Kind = "exchange", **fields: Any) -> list[Trained]:
    return ranks.run(ranks.tasks(name, kind, size, **fields), steps)


def differs(first: Trained, second: Trained) -> float:
    """The largest difference of two first updates, of the size of the update."""
    return max(
        float(np.linalg.norm(first.after[key] - second.after[key]) / np.linalg.norm(second.after[key] - start))
        for key, start in second.before.items()
    )


def test_micro_batches_come_to_the_same_update() -> None:
    (whole,) = run("mxnet:plain", 1, kind="solo")
    (parts,) = run("mxnet:plain", 1, kind="solo", options={"accumulate": "4"})
    assert 0 < differs(parts, whole) < 1e-3
    assert parts.losses[0] == pytest.approx(whole.losses[0], rel=1e-5)
    assert parts.samples == whole.samples


def test_where_and_how_the_update_is_made_changes_nothing() -> None:
    """On two servers with every array on both, or on the workers, or after micro-batches."""
    first, _ = run("mxnet:dist_sync", 2)
    spread, _ = run("mxnet:dist_sync", 2, servers=2, options={"bigarray_bound": "10"})
    here, also = run("mxnet:dist_sync", 2, options={"update_on_kvstore": "false"})
    parts, _ = run("mxnet:dist_sync", 2, options={"accumulate": "2"})
    assert here.digest == also.digest
    for other in (spread, here, parts):
        assert differs(other, first) < 1e-3


@pytest.mark.parametrize(("name", "size"), [("mxnet:dist_sync", 2), ("mxnet:dist_async", 1)])
def test_2bit_compression_loses_the_same_on_all_ranks(name: str, size: int) -> None:
    """Servers see each element of a rank's gradient as -threshold, 0 or threshold: so the first step can only be
    whole multiples of one length, up to the number of ranks."""
    threshold = 0.25
    options = {"compression": "2bit", "compression_threshold": str(threshold)}
    found = run(name, size, steps=3, options=options)
    assert len({trained.digest for trained in found}) == 1
    unit = models.spec("digits-cnn").recipe.rate * threshold / (4 * size)
    key = "000.0.weight"
    lengths = (found[0].after[key] - found[0].before[key]) / unit
    np.testing.assert_allclose(lengths, lengths.round(), atol=0.01)
    assert np.abs(lengths).max().round() == size


def test_staleness_is_what_others_pushed_since() -> None:
    (alone,) = run("mxnet:dist_async", 1, steps=6)
    assert alone.staleness == 0.0
    both = [trained.staleness or 0.0 for trained in run("mxnet:dist_async", 2, steps=6)]
    # Whoever pushes last has seen all six pushes of the other, over six steps of its own.
    assert max(both) == 1.0
    assert 0 <= min(both) <= 1.0


def test_importing_mxnet_says_nothing() -> None:
    code = "from scaling.frameworks.mx.library import mx; import mxnet; assert mx is mxnet"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


EMULATED: dict[str, Any] = {
    "device": "emulated", "profile": "p100", "model": "resnet50", "data": "synthetic", "batch_size": 32,
    "shrink": 1000.0,
}  # fmt: skip
ON_BOTH = """
import sys
from importlib import import_module
from msgspec import json
from scaling import frameworks
from scaling.records.task import Task
tasks = json.decode(sys.argv[1], type=list[Task])
module = import_module(frameworks.load(tasks[0].point.strategy).trainer_module)
for task in tasks:
    trainer = module.connect(task)
    trainer.step()
    trainer.sync()
    print(*(f"{each.__module__}.{each.__name__}" for each in type(trainer).__mro__))
    print(type(trainer.compute).__name__)
"""


@pytest.mark.parametrize("name", ["mxnet:plain", "mxnet:device"])
def test_on_emulated_devices_only_the_compute_is_another(name: str) -> None:
    """The loop and the strategy's own class are those of real devices, not others made for them."""
    kind: Kind = "solo" if name == "mxnet:plain" else "exchange"
    both = [ranks.one_task(name, kind), ranks.one_task(name, kind, **EMULATED)]
    real, computes, emulated, sleeps = said(ON_BOTH, json.encode(both).decode()).splitlines()
    assert emulated == real
    assert (computes, sleeps) == ("RealCompute", "EmulatedCompute")


UNFED = """
import sys
from scaling.frameworks import feeding
from scaling.frameworks.mx import loop
from scaling.workloads import models
from tests.support import native_feeds, written

_, unfed = native_feeds.ranks("mxnet:plain", "recordio", sys.argv[1])
try:
    feeding.opened(unfed, models.of(unfed.point.workload), loop.Records)
except feeding.FeedError as error:
    print(error)
"""


def test_a_part_without_pictures_is_an_error(tmp_path: Path) -> None:
    native_feeds.write(tmp_path, "recordio")
    records = tmp_path / "train.rec"
    records.write_bytes(records.read_bytes()[: records.stat().st_size // native_feeds.PICTURES])
    assert said(UNFED, str(tmp_path)).endswith("no pictures in this rank's part; take fewer ranks\n")


@pytest.mark.parametrize("label", [-1, 0.5, 10])
def test_labels_outside_the_classes_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: float
) -> None:
    monkeypatch.setattr(native_feeds, "of_class", lambda _picture: label)
    native_feeds.write(tmp_path, "recordio")
    assert said(UNFED, str(tmp_path)).endswith(f"--data recordio: of class {label}, the model has 10\n")


# ---------------------------------------------------------------- several contexts

EACH_CONTEXT = """
import sys
from msgspec import json
from scaling.frameworks.abilities import digest_of
from scaling.frameworks.mx import kvstore_trainer
from scaling.records.task import Task
trainer = kvstore_trainer.connect(json.decode(sys.argv[1], type=Task))
trainer.step()
print(*(len(set(round(float(each), 5) for each in losses.asnumpy())) for losses in trainer.compute._losses))
print(len({losses.asnumpy().tobytes() for losses in trainer.compute._losses}))
print(trainer.digest() == digest_of(trainer.weights_of(trainer.contexts[1])))
weight = next(iter(trainer.trained.values())).data(trainer.contexts[1])
weight[0] += 1e-3
try:
    trainer.digest()
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["mxnet:local", "mxnet:device"])
def test_a_context_that_differs_is_an_error(name: str) -> None:
    """Contexts see different images, hold the same weights, and digest() is no hash when they do not."""
    (task,) = tasks.worker_tasks(ranks.tasks(name, "exchange", 2), LocalKvstore().traits(name))
    losses, images, same, *error = said(EACH_CONTEXT, json.encode(task).decode()).splitlines()
    assert (losses, images, same) == ("4 4", "2", "True")
    assert error[0].startswith("the devices' parameters differ: {'cpu(0)': '")


@pytest.mark.parametrize("choice", ["true", "false"])
def test_on_one_device_there_is_nothing_to_choose(choice: str) -> None:
    (trained,) = run("mxnet:local", 1, options={"update_on_kvstore": choice})
    assert trained.samples == 4


@pytest.mark.parametrize("options", [{"update_on_kvstore": "false"}, {"accumulate": "2"}])
def test_options_do_not_change_the_update_of_two_contexts(options: dict[str, str]) -> None:
    (first,), (other,) = run("mxnet:device", 2), run("mxnet:device", 2, options=options)
    assert differs(other, first) < 1e-3
