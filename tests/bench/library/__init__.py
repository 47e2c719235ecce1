"""The same network twice, built from its description and by the framework's own library: a module per framework.

Each has LIBRARY, its name; NAMES, the networks that are compared where nobody asks for others; and `pair`, what
does a training step of ours and of theirs. Both train the same arrays with the same optimizer where they have the
same: other values change a CPU's step by several per cent, and so does where the system happens to put arrays of
hundreds of megabytes, whose update is most of a small batch's step.
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
