"""MXNet's kvstores, and Horovod under it."""

from __future__ import annotations

from scaling.frameworks.base import Framework

FRAMEWORK = Framework(
    name="mxnet",
    strategies={
        "local": "local_kvstore",
        "device": "local_kvstore",
        "nccl": "local_kvstore",
        "dist_sync": "dist_kvstore",
        "dist_device_sync": "dist_kvstore",
        "dist_async": "dist_kvstore",
        "horovod": "hvd",
        "plain": "plain",
    },
    aliases={"dist_sync_device": "dist_device_sync"},
    distributions={
        "mxnet": ("mxnet", *(f"mxnet-cu{release}" for release in (117, 116, 115, 114, 113, 112, 110, 102))),
        "nvidia-nccl-cu11": ("nvidia-nccl-cu11",),
        "horovod": ("horovod",),
    },
    startup_s=4.0,
    preload=("scaling.frameworks.mx.loop",),
    runs_ahead=True,
    resident_bytes=400_000_000,
)
