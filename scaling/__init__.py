"""Measure how well data-parallel training scales, what limits it, and what would help."""

import os
import sys

__version__ = "0.1.0"

# `python -m` puts the working directory first in sys.path: a file there could replace a module of Python or of a
# library. Move it to the end; strategies from outside are still found there. getcwd fails in a removed folder.
try:
    if sys.argv[:1] == ["-m"] and sys.path[0] == os.getcwd():  # noqa: PTH109 (pathlib imports what may be replaced)
        sys.path.append(sys.path.pop(0))
except FileNotFoundError:
    pass
