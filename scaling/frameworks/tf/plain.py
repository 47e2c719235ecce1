"""`tensorflow:plain`, the loop without any exchange, and what all of TensorFlow's strategies share with it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from scaling.frameworks import cuda, limits, options
from scaling.frameworks.base import PASSES, Option, Strategy, Traits
from scaling.frameworks.tf import FRAMEWORK
from scaling.hosts import gpus
from scaling.records.point import Device, Point
from scaling.records.task import Task

# ---------------------------------------------------------------- build
#
# What the installed TensorFlow is built for, read from its files; TensorFlow is not imported.


INSTALL = "./launch/install tensorflow-cuda"


def unfit() -> str | None:
    """Why it cannot compute on the GPUs of this host; None where it can, or where nobody knows."""
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
    """Under which name it is installed, with its version."""
    for name in FRAMEWORK.distributions["tensorflow"]:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "tensorflow"


# ---------------------------------------------------------------- plain

# Keras reads and writes `keras.json` in its home: a user's settings would change what is measured, and a
# benchmark has no business in a user's home. A folder that cannot be is quietly done without.
ENVIRON: Mapping[str, str] = {
    "KERAS_BACKEND": "tensorflow",
    "KERAS_HOME": os.devnull,
    "TF_CPP_MIN_LOG_LEVEL": "1",
}


class TensorFlowStrategy(Strategy):
    """What all of TensorFlow's strategies share: where they run, what their loop cannot do, its environment."""

    baseline = "tensorflow:plain"
    options: Mapping[str, Option] = options.LOOP
    native_formats: tuple[str, ...] = ("folders", "tfrecord")

    def devices(self, _name: str) -> tuple[Device, ...]:
        """All of them."""
        return ("cpu", "cuda", "emulated")

    def missing(self, _name: str, device: Device = "cpu") -> str | None:
        """Why TensorFlow cannot be imported, or on CUDA why its build does not fit, found without importing it."""
        package = find_spec("tensorflow")
        if package is None or package.origin is None:  # a folder that is called so
            return "tensorflow is not installed: ./launch/install tensorflow"
        return gpus.none_here("tensorflow:ring") or unfit() if device == "cuda" else None

    def refuse(self, point: Point) -> str | None:
        """What the shared loop cannot do. Any `memory_format` will do: TensorFlow has one of its own."""
        if (why := limits.refuse(point)) is not None:
            return why
        return options.refuse(point)

    def environ(self, _task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        """Keras' settings."""
        return dict(ENVIRON)


class Plain(TensorFlowStrategy):
    """One device by itself: the baseline."""

    names = ("tensorflow:plain",)
    trainer = "scaling.frameworks.tf.loop"

    def traits(self, _name: str) -> Traits:
        """Each pass by itself too."""
        return PASSES


STRATEGY = Plain()
