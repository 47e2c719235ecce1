"""What holds of each framework's own pipeline: ranks' shards are disjoint and complete, batches are of bytes."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from scaling import frameworks
from scaling.agent.environment import child_environ
from tests.support import native_feeds
from tests.support.native_feeds import BATCH, PICTURES, Fed

# What each reads, of which the first is damaged last; what it says of that.
PIPELINES = {
    "torch:plain": ("DataLoader", ["folders", "recordio"], ".jpg: Pillow cannot read it"),
    "tensorflow:plain": ("tf.data", ["folders", "tfrecord"], "--feed reference names the file"),
    "mxnet:plain": ("ImageRecordIter", ["recordio"], "--feed reference names the record"),
}


@pytest.mark.parametrize("strategy", PIPELINES)
def test_two_ranks_see_all_pictures_of_an_epoch_once_and_a_damaged_one_is_said(strategy: str) -> None:
    name, formats, complaint = PIPELINES[strategy]
    *epochs, damaged = fed(strategy, formats)
    for found in epochs:
        is_an_epoch(found, name)
    assert complaint in damaged.error
    assert "\n" not in damaged.error


def fed(strategy: str, formats: list[str]) -> list[Fed]:
    """What its pipeline gives, in a process of its own; skips where the framework is not there."""
    module = frameworks.load(strategy)
    if reason := module.missing(strategy):
        pytest.skip(reason)
    task = native_feeds.ranks(strategy, formats[0], "")[0]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.native_feeds", strategy, *formats],
        env=child_environ(os.environ, task, module.environ(task, {})),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=list[Fed])


def is_an_epoch(found: Fed, name: str) -> None:
    """Assert that it was one, in bytes, with the labels of its pictures."""
    assert found.error == ""
    first, second = found.samples
    assert sorted([*first, *second]) == list(range(PICTURES))
    for samples, labels in zip(found.samples, found.labels, strict=True):
        assert samples != sorted(samples)
        assert labels == [native_feeds.of_class(each) for each in samples]
    assert found.types == ["uint8", "uint8"]
    assert all(sorted(shape) == sorted([BATCH, 3, 32, 32]) for shape in found.shapes)
    assert all(said.startswith(f"{name}, 1 ") for said in found.said)
