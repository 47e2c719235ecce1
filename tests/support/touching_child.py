"""For the processes of a traced test (touching.py), as sitecustomize on PYTHONPATH: which functions do they run?

It writes one line a function: the file of tests, a space, scaling/FILE:LINE.
"""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType

BY = os.environ.get("SCALING_TOUCHED_BY")
ROOT = os.environ.get("SCALING_TOUCHED_ROOT", "") + f"{os.sep}scaling{os.sep}"
_seen: dict[int, CodeType] = {}


def _note(frame: FrameType, event: str, argument: object) -> None:
    code = frame.f_code
    if id(code) in _seen:
        return
    _seen[id(code)] = code
    if code.co_filename.startswith(ROOT):
        path = os.path.join(os.environ["SCALING_TOUCHED"], "children")  # noqa: PTH118  (pathlib would be traced)
        with open(path, "a") as out:  # noqa: PTH123
            out.write(f"{BY} scaling/{code.co_filename[len(ROOT) :]}:{code.co_firstlineno}\n")


if BY and "SCALING_TOUCHED" in os.environ:
    sys.settrace(_note)
    threading.settrace(_note)
