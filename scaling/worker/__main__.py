"""Entry of a fresh child.

python -m scaling.worker      (started by an agent only)
"""

from __future__ import annotations

import os

from scaling.records.task import EVENTS_FD
from scaling.worker.run_task import run_and_exit

if __name__ == "__main__":
    run_and_exit(int(os.environ[EVENTS_FD]))
