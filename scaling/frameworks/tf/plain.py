"""The agent's side of `tensorflow:plain`, and what all of TensorFlow's strategies share."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from scaling.frameworks import cuda, options
from scaling.frameworks.base import PASSES, Option, Strategy, Traits
from scaling.frameworks.tf import FRAMEWORK
from scaling.hosts import gpus
from scaling.records.point import Device, Point
from scaling.records.task import Task

# ---------------------------------------------------------------- build


INSTALL = "./launch/install tensorflow-cuda"


def unfit() -> str | None:
    """Return why TensorFlow cannot compute on this host's GPUs; None if it can or this is unknown."""
    package = find_spec("tensorflow")
    assert package is not None and package.origin is not None
    name = distribution()
    try:
        text = (Path(package.origin).parent / "python/platform/build_info.py").read_text()
    except OSError:
        return None
    if "('is_cuda_build', False)" in text:
        return f"{name} is built without CUDA: {INSTALL}"
    built = re.search(r"\('cuda_version', '(\d+\.\d+)", text)
    if built and (why := cuda.driver_too_old(name, cuda.version(built.group(1)), _mend)):
        return why
    return cuda.no_kernels(name, " ".join(re.findall(r"'((?:sm|compute)_\d+)[a-z]?'", text)), _mend)


def _mend() -> str:
    return "use another framework"


def distribution() -> str:
    for name in FRAMEWORK.distributions["tensorflow"]:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "tensorflow"


# ---------------------------------------------------------------- plain

# A user's `keras.json` would change the measurement. Keras ignores a home that it cannot create.
ENVIRON: Mapping[str, str] = {"KERAS_BACKEND": "tensorflow", "KERAS_HOME": os.devnull, "TF_CPP_MIN_LOG_LEVEL": "1"}


class TensorFlowStrategy(Strategy):
    """Devices, limits and environment of all of TensorFlow's strategies."""

    baseline = "tensorflow:plain"
    options: Mapping[str, Option] = options.LOOP
    native_formats: tuple[str, ...] = ("folders", "tfrecord")

    def devices(self, _name: str) -> tuple[Device, ...]:
        return ("cpu", "cuda", "emulated")

    def missing(self, _name: str, device: Device = "cpu") -> str | None:
        package = find_spec("tensorflow")
        if package is None or package.origin is None:  # a folder of this name
            return "tensorflow is not installed: ./launch/install tensorflow"
        return gpus.none_here("tensorflow:ring") or unfit() if device == "cuda" else None

    def refuse(self, point: Point) -> str | None:
        """Return what the loop cannot do. Any `memory_format` is accepted: TensorFlow has its own."""
        return options.refuse(point)

    def environ(self, _task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        return dict(ENVIRON)


class Plain(TensorFlowStrategy):
    """The loop of one device without exchange: the baseline."""

    names = ("tensorflow:plain",)
    trainer = "scaling.frameworks.tf.loop"

    def traits(self, _name: str) -> Traits:
        return PASSES


STRATEGY = Plain()
