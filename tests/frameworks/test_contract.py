"""What every strategy must keep, whatever its framework: one set of tests over the table of strategies."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from itertools import count
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from scaling import frameworks
from scaling.hosts.gpus import gather_gpus
from scaling.records.point import Device, Kind
from scaling.records.task import Task
from scaling.workloads import models
from tests.support import counted_bytes, ranks
from tests.support.matrix import cases
from tests.support.rank import Trained

FRAMEWORKS = ("torch", "torchvision", "tensorflow", "keras", "mxnet", "jax", "horovod", "mpi4py")
STEPS = 3
# Sums in another order differ by 1e-7 of a gradient; a missing exchange, or a sum for a mean, by all of it.
TOLERANCE = 1e-3

# One of each framework starts as on GPUs, where nothing is forked; test_forks.py compares fresh ranks with forks.
FRESH = ("torch:gloo", "tensorflow:ring", "mxnet:dist_sync", "jax:psum")

# Their gRPC servers listen on all interfaces, and cannot be told otherwise.
OVER_GRPC = ("tensorflow:ring", "tensorflow:ps")

# What options change about how gradients and parameters travel, and on how many ranks that can be seen. Half
# precision rounds a gradient by at most 2^-11 of it on its way, and their sum once more: less than TOLERANCE, 4e-4
# was seen.
WAYS: tuple[tuple[str, int, tuple[tuple[str, str], ...]], ...] = (
    ("torch:gloo", 2, (("compress", "fp16"),)),
    ("torch:gloo", 2, (("shard_optimizer", "true"),)),
    ("torch:fsdp2", 2, (("reshard", "false"), ("accumulate", "2"))),
    ("torch:fsdp2", 4, (("hsdp", "2"),)),
)

every_strategy = pytest.mark.parametrize("name", frameworks.NAMES)


def device_for(name: str, size: int) -> Device:
    """Where it can run with that many ranks on this machine; skips the test if nowhere."""
    module = frameworks.load(name)
    if reason := module.missing(name):
        pytest.skip(reason)
    gpus = len(gather_gpus()[0])
    if "cpu" not in module.devices(name) and gpus < size:
        pytest.skip(f"{gpus} GPUs on this machine")
    return "cpu" if "cpu" in module.devices(name) else "cuda"


@cache
def exchanged(name: str, size: int, options: tuple[tuple[str, str], ...] = ()) -> list[Trained]:
    """Run the strategy on `size` ranks."""
    tasks = ranks.tasks(name, "exchange", size, device=device_for(name, size), options=dict(options))
    return ranks.run(tasks, STEPS, fresh=size == 1 and name in FRESH)


@cache
def plain(baseline: str, size: int, device: Device) -> Trained:
    (trained,) = ranks.run(ranks.tasks(baseline, "solo", 1, device=device), joined=size)
    return trained


def parameters(name: str) -> int:
    return models.spec("digits-cnn").parameters


def synchronous(name: str) -> Any:
    """The module, if its ranks move in lock-step; skips the test if not."""
    module = frameworks.load(name)
    if not module.traits(name).synchronous:
        pytest.skip("asynchronous: ranks' parameters differ by design")
    return module


def test_before_the_worker_no_framework_is_imported() -> None:
    code = (
        "import sys\n"
        "from scaling import frameworks\nfrom scaling.workloads import feeds, models\n"
        "for name in [*frameworks.NAMES, *(f'{framework}:plain' for framework in frameworks.FRAMEWORKS)]:\n"
        "    module = frameworks.load(name)\n"
        "    module.missing(name), module.devices(name), module.traits(name)\n"
        f"print(*set({FRAMEWORKS}) & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@every_strategy
def test_names_itself_and_its_baseline(name: str) -> None:
    module = frameworks.load(name)
    assert name in module.names
    assert module.baseline in frameworks.load(module.baseline).names
    assert set(module.devices(name)) <= set(get_args(Device))
    assert set(module.devices(name)) <= set(module.devices(module.baseline))


@every_strategy
@pytest.mark.parametrize("kind", get_args(Kind))
def test_environ_is_pure(name: str, kind: Kind) -> None:
    module = frameworks.load(name)
    for task in ranks.tasks(name, kind, 2, ports=count(5000)):
        process, given = dict(os.environ), msgspec.json.encode(task)
        first, second = module.environ(task, {}), module.environ(task, {})
        assert first == second
        assert all(isinstance(value, str) for pair in first.items() for value in pair)
        assert (dict(os.environ), msgspec.json.encode(task)) == (process, given)


@every_strategy
@pytest.mark.parametrize("size", cases([2, 4], [2]))
def test_digests_agree(name: str, size: int) -> None:
    synchronous(name)
    digests = {trained.digest for trained in exchanged(name, size)}
    assert len(digests) == 1
    assert None not in digests


@every_strategy
@pytest.mark.parametrize("size", cases([1, 2, 4], [1, 2]))
def test_one_step_equals_the_plain_loop_on_the_joined_batch(name: str, size: int) -> None:
    synchronous(name)
    equals_the_joined_batch(name, size, exchanged(name, size))


@pytest.mark.parametrize(("name", "size", "options"), WAYS)
def test_with_any_options_a_step_equals_the_plain_loops(
    name: str, size: int, options: tuple[tuple[str, str], ...]
) -> None:
    found = exchanged(name, size, options)
    assert len({trained.digest for trained in found}) == 1
    equals_the_joined_batch(name, size, found)


def equals_the_joined_batch(name: str, size: int, found: Sequence[Trained]) -> None:
    """The update of one step on every rank is that of the plain loop on the ranks' batches joined."""
    wanted = plain(frameworks.load(name).baseline, size, device_for(name, size))
    for trained in found:
        assert trained.before.keys() == wanted.before.keys()
        for key, start in wanted.before.items():
            np.testing.assert_array_equal(trained.before[key], start)
            update = wanted.after[key] - start
            error = trained.after[key] - wanted.after[key]
            assert np.linalg.norm(update) > 0
            assert np.linalg.norm(error) < TOLERANCE * np.linalg.norm(update), key


@every_strategy
def test_tells_the_truth_about_what_it_trained(name: str) -> None:
    found = exchanged(name, 2)
    alone = frameworks.load(name).traits(name).drives == "device"
    assert len(found) == (2 if alone else 1)
    for trained in found:
        assert trained.samples == (4 if alone else 8) * STEPS
        assert trained.parameters == parameters(name)
        assert trained.gradient_bytes == 4 * trained.parameters
        assert trained.device_name
        assert trained.versions
        # Pushes that are not averaged may throw a batch of four images far off: finite is all there is to ask.
        assert all(loss is not None and 0 < loss < math.inf for loss in trained.losses)
    assert not alone or found[0].losses != found[1].losses, "both ranks saw the same images"


@every_strategy
def test_the_parameters_have_moved(name: str) -> None:
    for trained in exchanged(name, 2):
        moved = [key for key, start in trained.before.items() if not np.array_equal(trained.after[key], start)]
        assert moved == list(trained.before)


@every_strategy
def test_listens_on_the_chosen_network_alone(name: str) -> None:
    everywhere = {"::"} if name in OVER_GRPC else set()
    for trained in exchanged(name, 2):
        assert set(trained.listening) - {"127.0.0.1", "::ffff:127.0.0.1"} == everywhere


@every_strategy
def test_asynchronous_modes_tell_their_staleness(name: str) -> None:
    synchronous_mode = frameworks.load(name).traits(name).synchronous
    for trained in exchanged(name, 2):
        assert (trained.staleness is None) == synchronous_mode
        assert trained.staleness is None or trained.staleness >= 0


@every_strategy
def test_comm_exchanges_and_trains_nothing(name: str) -> None:
    """On CPUs all that is exchanged goes over the loopback; what others send there meanwhile only adds to it."""
    tasks = ranks.tasks(name, "comm", 2, device=device_for(name, 2))
    before = counted_bytes.loopback_bytes()
    found = ranks.run(tasks, STEPS)
    sent = counted_bytes.loopback_bytes() - before
    for trained in found:
        assert trained.losses == [None] * STEPS
        assert trained.digest is None
        assert trained.samples == 0
        assert trained.gradient_bytes == 4 * parameters(name)
    if tasks[0].point.hardware.device == "cpu":
        assert sent >= 0.95 * STEPS * bytes_per_step(name, tasks[0])


def bytes_per_step(name: str, task: Task) -> float:
    strategy = frameworks.load(name)
    bounds = strategy.bytes_per_step(counted_bytes.apart(task), 4 * parameters(name))
    assert bounds is not None
    # Where ranks do not wait for each other it is each rank's.
    return bounds[0] * (1 if strategy.traits(name).synchronous else task.point.world_size)
