"""TensorFlow's strategies for several workers, its parameter server, and Horovod under it."""

from __future__ import annotations

from scaling.frameworks.base import Framework

FRAMEWORK = Framework(
    name="tensorflow",
    strategies={
        "ring": "multiworker",
        "nccl": "multiworker",
        "ps": "ps",
        "horovod": "hvd",
        "plain": "plain",
    },
    distributions={
        "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu"),
        "keras": ("keras",),
        "nvidia-nccl-cu12": ("nvidia-nccl-cu12",),
        "horovod": ("horovod",),
    },
    startup_s=9.0,
    preload=("scaling.frameworks.tf.loop",),
    resident_bytes=700_000_000,
)
