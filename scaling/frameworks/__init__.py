"""Name -> strategy module. Imports nothing but what is asked for, so that a broken framework costs one row."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import cast

from scaling.errors import UsageError, near
from scaling.frameworks.base import Strategy

HERE = "scaling.frameworks."
# In the order in which --list prints them.
TABLE: dict[str, str] = {
    "torch:nccl": HERE + "pytorch.ddp",
    "torch:gloo": HERE + "pytorch.ddp",
    "torch:horovod": HERE + "pytorch.hvd",
    "torch:ps-sync": HERE + "pytorch.ps",
    "torch:ps-async": HERE + "pytorch.ps",
    "tensorflow:ring": HERE + "tf.multiworker",
    "tensorflow:nccl": HERE + "tf.multiworker",
    "tensorflow:ps": HERE + "tf.ps",
    "tensorflow:horovod": HERE + "tf.hvd",
    "mxnet:local": HERE + "mx.local_kvstore",
    "mxnet:device": HERE + "mx.local_kvstore",
    "mxnet:nccl": HERE + "mx.local_kvstore",
    "mxnet:dist_sync": HERE + "mx.dist_kvstore",
    "mxnet:dist_device_sync": HERE + "mx.dist_kvstore",
    "mxnet:dist_async": HERE + "mx.dist_kvstore",
    "mxnet:horovod": HERE + "mx.hvd",
}
# `<framework>:plain` is the loop without any exchange: the baseline of every strategy of the framework.
PLAIN: dict[str, str] = {
    "torch": HERE + "pytorch.ddp",
    "tensorflow": HERE + "tf.multiworker",
    "mxnet": HERE + "mx.dist_kvstore",
    "fake": HERE + "fake.strategy",
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
        return cast(Strategy, import_module("scaling.frameworks.fake.strategy"))
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
