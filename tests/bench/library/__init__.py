"""The same network twice, built from its description and by the framework's own library: a module per framework.

Each has LIBRARY, its name; NAMES, the networks that are compared where nobody asks for others; and `pair`, what
does a training step of ours and of theirs, with equal weights where both have the same arrays: other values alone
change a CPU's step by several per cent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# Images of a step.
BATCH = 4


class Pair(NamedTuple):
    """A training step of each, waited for."""

    ours: Callable[[], object]
    theirs: Callable[[], object]
