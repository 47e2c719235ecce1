"""How well data-parallel training scales, why not better, and what would help."""

import os
import sys

__version__ = "0.1.0"

# `python -m` looks first in the folder that it is started in: what lies there must not replace a module of Python
# or of a library. Strategies from outside are still found in it. A folder that was removed has no name.
try:
    if sys.argv[:1] == ["-m"] and sys.path[0] == os.getcwd():  # noqa: PTH109 (pathlib imports what may be replaced)
        sys.path.append(sys.path.pop(0))
except FileNotFoundError:
    pass
