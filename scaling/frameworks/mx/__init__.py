"""MXNet's kvstores, and Horovod under it."""

from __future__ import annotations

from scaling.frameworks import horovod
from scaling.frameworks.base import Exchange, Framework

FRAMEWORK = Framework(
    name="mxnet",
    strategies={
        "local": "strategies",
        "device": "strategies",
        "nccl": "strategies",
        "dist_sync": "strategies",
        "dist_device_sync": "strategies",
        "dist_async": "strategies",
        "horovod": "strategies",
        "plain": "strategies",
    },
    aliases={"dist_sync_device": "dist_device_sync"},
    distributions={
        "mxnet": ("mxnet", *(f"mxnet-cu{release}" for release in (117, 116, 115, 114, 113, 112, 110, 102))),
        "nvidia-nccl-cu11": ("nvidia-nccl-cu11",),
        **horovod.DISTRIBUTIONS,
    },
    essential=("mxnet", "nvidia-nccl-cu11", horovod.PACKAGE),
    startup_s=4.0,
    preload=("scaling.frameworks.mx.loop",),
    # Its kvstores pin memory for GPU 0, which makes a context there (mxnet/src/kvstore/comm.h: CPUPinned(0)).
    sees_one_gpu=True,
    returns_early=("cpu", "cuda", "emulated"),
    resident_bytes=400_000_000,
    mode_flag="kv_store",
    exchanges={"local": Exchange(method="servers_beside"), "horovod": horovod.EXCHANGE},
    variables=f"MXNET_|PS_|{horovod.VARIABLES}",
    # For ps-lite. Kubernetes sets PORT=tcp://... for a service of that name.
    own_variables=r"DMLC_|PORT$",
    explained={
        "batch": "per device in every row. MXNet counts it per process: if one process drives N devices, its "
        "own batch size is N times this."
    },
)
