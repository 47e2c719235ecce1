"""TensorFlow's strategies for several workers, its parameter server, and Horovod."""

from __future__ import annotations

from scaling.frameworks import horovod
from scaling.frameworks.base import Exchange, Framework

FRAMEWORK = Framework(
    name="tensorflow",
    strategies={
        "ring": "strategies",
        "nccl": "strategies",
        "ps": "strategies",
        "horovod": "strategies",
        "plain": "strategies",
    },
    distributions={
        "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu"),
        "keras": ("keras",),
        "nvidia-nccl-cu12": ("nvidia-nccl-cu12",),
        **horovod.DISTRIBUTIONS,
    },
    essential=("tensorflow", "nvidia-nccl-cu12", horovod.PACKAGE),
    startup_s=9.0,
    preload=("scaling.frameworks.tf.loop",),
    returns_early=("cuda",),
    resident_bytes=700_000_000,
    # The wheels of 2.21 end with PTX of 9.0. Newer GPUs need one compilation of all kernels by the driver, which
    # "could take 30 minutes or longer" (gpu_device.cc).
    kernels_up_to=(9, 0),
    translation_s=2700.0,
    exchanges={"": Exchange(overlap="mwms"), "horovod": horovod.EXCHANGE},
    # TF_CONFIG is set for each process. TF_CLI_ and TF_VAR_ are Terraform's.
    variables=rf"TF_(?!CONFIG$|CLI_|VAR_)|KERAS_|XLA_|{horovod.VARIABLES}",
)
