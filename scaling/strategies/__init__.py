"""Name -> strategy module. Imports nothing but what is asked for, so that a broken framework costs one row."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import cast

from scaling.errors import UsageError, near
from scaling.strategies.base import Strategy

HERE = "scaling.strategies."
# In the order in which --list prints them.
TABLE: dict[str, str] = {
    "torch:nccl": HERE + "torch_ddp",
    "torch:gloo": HERE + "torch_ddp",
    "torch:horovod": HERE + "horovod_torch",
    "torch:ps-sync": HERE + "torch_ps",
    "torch:ps-async": HERE + "torch_ps",
    "tensorflow:ring": HERE + "tf_collective",
    "tensorflow:nccl": HERE + "tf_collective",
    "tensorflow:ps": HERE + "tf_ps",
    "tensorflow:horovod": HERE + "horovod_tf",
    "mxnet:local": HERE + "mxnet_devices",
    "mxnet:device": HERE + "mxnet_devices",
    "mxnet:nccl": HERE + "mxnet_devices",
    "mxnet:dist_sync": HERE + "mxnet_kvstore",
    "mxnet:dist_device_sync": HERE + "mxnet_kvstore",
    "mxnet:dist_async": HERE + "mxnet_kvstore",
    "mxnet:horovod": HERE + "horovod_mxnet",
}
# `<framework>:plain` is the loop without any exchange: the baseline of every strategy of the framework.
PLAIN: dict[str, str] = {
    "torch": HERE + "torch_ddp",
    "tensorflow": HERE + "tf_collective",
    "mxnet": HERE + "mxnet_kvstore",
    "fake": HERE + "fake",
}
# Names that users of a framework write for the same mode.
ALIASES: dict[str, str] = {"mxnet:dist_sync_device": "mxnet:dist_device_sync"}


@lru_cache(maxsize=64)
def load(name: str) -> Strategy:
    """Return the module of a strategy.

    `fake:<anything>` is the scripted one; `package.module:mode` takes a file from outside, which must
    list the name in its NAMES. Raises UsageError for an unknown name, with the near match.
    """
    name = ALIASES.get(name, name)
    framework, _, mode = name.partition(":")
    if framework == "fake" and mode:
        return cast(Strategy, import_module("scaling.strategies.fake"))
    if mode == "plain" and framework in PLAIN:
        return cast(Strategy, import_module(PLAIN[framework]))
    if name in TABLE:
        return cast(Strategy, import_module(TABLE[name]))
    if "." in framework and mode:
        return _outside(framework, name)
    raise UsageError(f"--strategy {name}: unknown; {near(name, [*TABLE, 'fake:NAME'])}")


def _outside(module: str, name: str) -> Strategy:
    try:
        found = import_module(module)
    except ImportError as error:
        raise UsageError(f"--strategy {name}: cannot import {module}: {error}") from None
    if name not in getattr(found, "NAMES", ()):
        raise UsageError(f"--strategy {name}: {module} does not list it in NAMES")
    return cast(Strategy, found)
