"""A DDP script measured by scaling.run against the same script under torchrun: at least 0.99, by an interval of
1 % to either side or less.

python -m tests.bench.script        (MINUTES=4 by default; two cores)

Both are alive at once and take turns of a second: while one trains, all processes of the other are stopped, so
that slow phases of the machine hit both alike. The bare script times itself, by a hook at the end of each step, on
one core a rank, as ours. A turn counts with the windows or steps that lie inside of it, and is compared with the
mean of its two neighbours of the other side.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from subprocess import DEVNULL, Popen
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil

from scaling.analysis.statistics import intervals
from scaling.records import store
from tests.bench.turns import say
from tests.support.scripts import LOOP

# Keeps the ends of rank 0's steps, from outside of the loop's own code.
TIMED = """
import os, time
from torch.optim.optimizer import register_optimizer_step_post_hook
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ["LOCAL_RANK"])]})
if os.environ["RANK"] == "0":
    ends = open("ends", "w")
    register_optimizer_step_post_hook(lambda *_: ends.write(f"{time.monotonic()}\\n"))
"""
TURN_S, WINDOW_S, BATCHES = 1.0, 0.1, 10
# What follows a change of turns: the stopped processes' caches, and a step that began before.
SETTLES_S = 0.1
BARE = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py", "--steps", "100000000")
OURS = (
    "-m", "scaling.run", "--world-sizes", "2", "--kinds", "exchange", "--rounds", "1", "--no-page", "--view",
    "none", "--window-s", str(WINDOW_S), "--results", "results",
)  # fmt: skip


class Turn(NamedTuple):
    side: str
    begin_s: float
    end_s: float


def main() -> None:
    windows = round(60 * float(os.environ.get("MINUTES", "4")) / 2 / WINDOW_S)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing is left stopped
    with TemporaryDirectory() as name:
        ours, bare = Path(name).resolve() / "ours", Path(name).resolve() / "bare"
        words = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, *OURS)
        sides = (
            _started(ours, LOOP, *words, "--windows", str(windows), "--", "train.py"),
            _started(bare, TIMED + LOOP, sys.executable, *BARE),
        )
        try:
            turns = list(_turns(sides[0], ours, bare))
        finally:
            for started, folder in zip(sides, (ours, bare), strict=True):
                _signal(folder, "kill")
                started.wait()
        if sides[0].returncode:
            sys.exit(f"scaling.run ended with {sides[0].returncode}")
        step_s = {"ours": _ours(ours, turns), "bare": _bare(bare, turns)}
    logs = list(_ratios(turns, step_s))
    size = len(logs) // BATCHES
    ratio = intervals.interval([fmean(logs[at * size : (at + 1) * size]) for at in range(BATCHES)])
    assert ratio.low is not None and ratio.high is not None
    for side, found in step_s.items():
        say(f"{side}: {1e3 * fmean(found.values()):.3f} ms a step in {len(found)} turns")
    say(f"ratio {exp(ratio.mean):.3f} ({exp(ratio.low):.3f} to {exp(ratio.high):.3f}), {len(logs)} turns")


def _started(folder: Path, script: str, *command: str) -> Popen[bytes]:
    folder.mkdir()
    (folder / "train.py").write_text(script)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return Popen(command, cwd=folder, env=environ, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)


def _signal(folder: Path, what: str) -> None:
    """Suspend, resume or kill all processes that work in a folder or below it."""
    for one in psutil.process_iter():
        try:
            if Path(one.cwd()).is_relative_to(folder):
                getattr(one, what)()
        except psutil.Error:
            continue


def _turns(measured: Popen[bytes], ours: Path, bare: Path) -> Iterator[Turn]:
    """Let the sides take turns until ours has ended; yield whose turn it was, and when."""
    while True:
        for side, folder, other in (("ours", ours, bare), ("bare", bare, ours)):
            _signal(other, "suspend")
            _signal(folder, "resume")
            begin_s = time.monotonic()
            time.sleep(TURN_S)
            yield Turn(side, begin_s, time.monotonic())
            if measured.poll() is not None:
                return


def _ours(folder: Path, turns: Sequence[Turn]) -> dict[Turn, float]:
    (run,) = (folder / "results").iterdir()
    (record,) = store.load(run)[1]
    found = {}
    for turn in turns:
        inside = [
            window
            for window in record.ranks[0].windows
            if turn.begin_s + SETTLES_S <= window.start_s and window.end_s <= turn.end_s
        ]
        if turn.side == "ours" and inside:
            found[turn] = sum(one.end_s - one.start_s for one in inside) / sum(one.steps for one in inside)
    return found


def _bare(folder: Path, turns: Sequence[Turn]) -> dict[Turn, float]:
    ends_s = [float(word) for word in (folder / "ends").read_text().split("\n")[:-1]]
    found = {}
    for turn in turns:
        first, last = bisect_left(ends_s, turn.begin_s + SETTLES_S), bisect_left(ends_s, turn.end_s) - 1
        if turn.side == "bare" and last > first:
            found[turn] = (ends_s[last] - ends_s[first]) / (last - first)
    return found


def _ratios(turns: Sequence[Turn], step_s: Mapping[str, Mapping[Turn, float]]) -> Iterator[float]:
    """The logarithms of bare / ours: each turn of ours against the turns before and after it."""
    for before, turn, after in zip(turns, turns[1:], turns[2:], strict=False):
        bare = step_s["bare"]
        if turn in step_s["ours"] and before in bare and after in bare:
            yield log((bare[before] + bare[after]) / 2 / step_s["ours"][turn])


if __name__ == "__main__":
    main()
