"""How well data-parallel training scales, why not better, and what would help."""

import os
import sys

__version__ = "0.1.0"

# `python -m` looks first in the folder that it is started in: a random.py, json.py or torch/ there must not
# replace the real one. Strategies from outside are still found in it. A folder that was removed has no name.
try:
    if sys.argv[:1] == ["-m"] and sys.path[0] == os.getcwd():  # noqa: PTH109 (pathlib imports what may be replaced)
        sys.path.append(sys.path.pop(0))
except FileNotFoundError:
    pass
