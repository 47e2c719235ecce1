"""Imported by a fork server of tests: its forks are workers, or ranks of tests/support/rank.py where the
environment says so."""

from __future__ import annotations

import os
from typing import NoReturn

from scaling.worker import run_task
from tests.support import rank

_worker = run_task.run_and_exit


def run_and_exit(events_fd: int) -> NoReturn:
    if rank.ASKED in os.environ:
        rank.main()
    _worker(events_fd)


run_task.run_and_exit = run_and_exit
