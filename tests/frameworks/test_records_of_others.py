"""Files of records that TensorFlow and MXNet write themselves, as our readers see them."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from scaling.workloads import data
from scaling.workloads.data.records import records

TENSORFLOW = """
import sys, tensorflow as tf
def feature(value):
    if isinstance(value, int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    if isinstance(value, float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value, value]))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
for number in range(2):
    with tf.io.TFRecordWriter(f"{sys.argv[1]}/train-{number:05}-of-00002") as writer:
        for label in (1, 200, 1000):
            fields = {"image/height": 3, "image/object/bbox/xmin": 0.5, "image/class/text": b"a",
                      "image/class/label": label, "image/encoded": bytes([number]) * (200 * label)}
            features = tf.train.Features(feature={name: feature(value) for name, value in fields.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())
"""
MXNET = """
import sys
from scaling.frameworks.mx import library
from mxnet import recordio
magic = (0xCED7230A).to_bytes(4, "little")
writer = recordio.MXIndexedRecordIO(f"{sys.argv[1]}/train.idx", f"{sys.argv[1]}/train.rec", "w")
shown = [(3.0, b"first"), ([7.0, 1.0], b"ab"), (0.0, b"abcd" + magic + b"ef" + magic)]
for number, (label, content) in enumerate(shown):
    writer.write_idx(number, recordio.pack(recordio.IRHeader(0, label, number, 0), content))
writer.close()
"""


def write(script: str, package: str, folder: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"no {package}")
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_tfrecords_of_tensorflow(tmp_path: Path) -> None:
    write(TENSORFLOW, "tensorflow", tmp_path)
    found = records(tmp_path, data.spec("imagenet-tfrecord"), "train")
    pictures = [found.read(index) for index in range(len(found))]
    assert [label for _, label in pictures] == [0, 199, 999, 0, 199, 999]
    assert [content for content, _ in pictures] == [
        bytes([number]) * (200 * label) for number in range(2) for label in (1, 200, 1000)
    ]


def test_recordio_of_mxnet(tmp_path: Path) -> None:
    write(MXNET, "mxnet", tmp_path)
    magic = (0xCED7230A).to_bytes(4, "little")
    found = records(tmp_path, data.spec("imagenet-rec"), "train")
    assert [found.read(index) for index in range(len(found))] == [
        (b"first", 3),
        (b"ab", 7),
        (b"abcd" + magic + b"ef" + magic, 0),
    ]
