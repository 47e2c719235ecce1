"""A process in the place of one that measures for the preflight: it runs the program of a test.

python -m tests.support.answering      (started by the preflight in a test)
"""

from __future__ import annotations

import os

PROGRAM = "SCALING_TEST_PROGRAM"

if __name__ == "__main__":
    exec(os.environ[PROGRAM])
