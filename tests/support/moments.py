"""A launch of two ranks, and moments of its life at which one of them gets a signal.

A rank counts what the interpreter reports of it (audit events: imports, files, sockets, processes). So a moment is
progress of the run: the same event of each launch, and a part of the time until the next one.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from scaling.records import store
from tests.support.children import environ_of
from tests.support.waiting import eventually

COUNT, SEED = 40, 45
WITHIN_S = 120
PLACE, MOMENT = "TESTED_PLACE", "TESTED_MOMENT"  # a folder; `RANK EVENT`
# For python -c COUNTING FLAG...: `scaling.run` from its first line. Events count from its first import on, because
# earlier signals are the interpreter's. A rank writes its process id at its moment, and all times at its end.
COUNTING = f"""
import json, os, runpy, sys, time
names = ("TESTED_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
own, rank = os.getpid(), next(os.environ[name] for name in names if name in os.environ)
place, (wanted, event) = os.environ["{PLACE}"], os.environ["{MOMENT}"].split()
times = []
def write(name, text):
    with open(f"{{place}}/part-{{own}}", "w") as file:
        file.write(text)
    os.replace(file.name, f"{{place}}/{{name}}")
def count(kind, arguments):
    if os.getpid() == own and (times or (kind, arguments[0]) == ("import", "scaling.command")):
        times.append(time.monotonic())
        if (rank, len(times)) == (wanted, int(event)):
            write("moment", str(own))
sys.addaudithook(count)
try:
    runpy.run_module("scaling.run", run_name="__main__", alter_sys=True)
finally:
    write(f"life-{{rank}}", json.dumps(times))
"""
QUICK = (
    "--strategy", "fake:a", "--kinds", "solo,exchange", "--world-sizes", "2", "--rounds", "1", "--windows", "3",
    "--window-s", "0.02", "--soak-s", "0", "--no-page",
)  # fmt: skip
COMMAND = (sys.executable, "-c", COUNTING, *QUICK)
LAST = "\nscaling: fake:a N=2 "
SAID = re.compile(
    "interrupted after|ended before the first point|ended while ranks|the ranks had not started"
    "|ended before it found rank 0"
)
OUR_TRACEBACK = re.compile(r'File "\S*/scaling/')  # torchrun has one of its own


class Launch(NamedTuple):
    """Processes of a launch that the test started: all ranks, or their launcher."""

    started: Sequence[subprocess.Popen[bytes]]

    def codes(self) -> list[int]:
        """Wait for their ends; return exit codes as a shell gives them."""
        return [_as_shells(one.wait(WITHIN_S)) for one in self.started]


Start = Callable[[Path, Mapping[str, str]], Launch]


class Moment(NamedTuple):
    """An event of a rank, and how long after it the signal comes."""

    rank: int
    number: signal.Signals
    event: int
    after_s: float


def started(folder: Path, environ: Mapping[str, str], *commands: Sequence[str]) -> Launch:
    """Start these commands with one output, in a folder."""
    with (folder / "said").open("ab") as out:
        return Launch(
            [
                subprocess.Popen(
                    command, cwd=folder, env={**environ, **({"TESTED_RANK": str(rank)} if commands[1:] else {})},
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                )
                for rank, command in enumerate(commands)
            ]
        )  # fmt: skip


class Life:
    """One undisturbed launch: what its ranks did, and when."""

    def __init__(self, start: Start, folder: Path) -> None:
        self._start = start
        codes = start(folder, _environ(folder, "none 0")).codes()
        assert not any(codes), said(folder)
        self._times_s = [json.loads((folder / f"life-{rank}").read_text()) for rank in (0, 1)]

    def moment(self, number: int) -> Moment:
        """Return one of COUNT moments, spread over the life; ranks and signals take turns."""
        rank, kind = number % 2, (signal.SIGTERM, signal.SIGINT)[number // 2 % 2]
        part = (number + random.Random(SEED + number).random()) / COUNT
        times_s = self._times_s[rank]
        at_s = times_s[0] + part * (times_s[-1] - times_s[0])
        event = bisect_right(times_s, at_s)
        return Moment(rank, kind, event, at_s - times_s[event - 1])

    def ends(self, folder: Path, number: int) -> None:
        """Send the signal of a moment to its rank; assert that all ends as it must."""
        moment = self.moment(number)
        launch = self._start(folder, _environ(folder, f"{moment.rank} {moment.event}"))
        try:
            came = eventually(
                lambda: _came(folder) or (all(one.poll() is not None for one in launch.started) and "0"),
                lambda: said(folder), within_s=WITHIN_S, every_s=0.002,
            )  # fmt: skip
            # The last events of a life are not the same in each.
            assert came != "0" or number > 0.8 * COUNT, f"it ended before {moment}: {said(folder)}"
            time.sleep(moment.after_s)
            if came != "0":
                with suppress(ProcessLookupError):
                    os.kill(int(came), moment.number)
            check(folder, launch.codes(), 128 + moment.number)
        finally:
            for process in running(folder):
                process.kill()


def check(folder: Path, codes: Sequence[int], code: int) -> None:
    """Assert that all ended with this code, or with 0 after the last line; that it is said why; that runs can be
    read; and that no process and no secret is left."""
    text = said(folder)
    if failed := re.findall(r"^  exitcode  : (-?\d+) ", text, re.MULTILINE):
        codes = [_as_shells(int(failed[-1]))]  # torchrun's own is 1; the last one is of the first failure
    is_whole = LAST in text and "interrupted after" not in text
    assert {*codes} <= {code, *([0] if is_whole else [])}, f"{codes}: {text}"
    assert not OUR_TRACEBACK.search(text) and (is_whole or SAID.search(text)), text
    eventually(lambda: not running(folder), lambda: running(folder), within_s=WITHIN_S)
    assert not list(folder.glob("results/.secret*"))
    for run in folder.glob("results/*"):
        store.load(run)


def _as_shells(code: int) -> int:
    return 128 - code if code < 0 else code


def said(folder: Path) -> str:
    return (folder / "said").read_text()


def running(folder: Path) -> list[psutil.Process]:
    """The processes of a launch: they inherit its place."""
    mark = f"{PLACE}={folder}".encode()
    return [one for one in psutil.process_iter() if mark in environ_of(one.pid).split(b"\0")]


def _came(folder: Path) -> str:
    with suppress(FileNotFoundError):
        return (folder / "moment").read_text()
    return ""


def _environ(folder: Path, moment: str) -> dict[str, str]:
    """The variables of this process, without a launcher's."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMI", "SLURM_"))}
    return {**own, PLACE: str(folder), MOMENT: moment}
