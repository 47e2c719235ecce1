"""Name -> strategy module. Imports nothing but what is asked for, so that a broken framework costs one row."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import cast

from scaling.errors import UsageError, near
from scaling.strategies.base import Strategy

TABLE: dict[str, str] = {
    "torch:nccl": "scaling.strategies.torch_ddp",
    "torch:gloo": "scaling.strategies.torch_ddp",
}
# `<framework>:plain` is the loop without any exchange: the baseline of every strategy of the framework.
PLAIN: dict[str, str] = {"torch": "scaling.strategies.torch_ddp", "fake": "scaling.strategies.fake"}


@lru_cache(maxsize=64)
def load(name: str) -> Strategy:
    """Return the module of a strategy.

    `fake:<anything>` is the scripted one; `package.module:mode` takes a file from outside, which must
    list the name in its NAMES. Raises UsageError for an unknown name, with the near match.
    """
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
