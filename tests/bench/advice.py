"""Does what "try" suggests lower the loss that it is said to lower?

Runs each setting with and without the suggested flag, alternately in the same minutes. Prints the share of the
cause in both, with its 95 % interval. A suggestion of scaling/report/answer.py must go if its
cause does not become significantly smaller. Options that are no suggestions are here to be tried.

python -m tests.bench.advice [NAME...]      (all; those in the lab need root)
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.support import labs

ROOT = Path(__file__).parents[2]
TIMES = 1
QUICK = ("--soak-s", "0", "--no-page", "--view", "none")


class Trial(NamedTuple):
    """A cause of loss, the flags of a run that has it, and the change. `ranks` on this machine, or on a lab of
    `nodes` nodes of one slot."""

    cause: str
    flags: str
    change: str
    ranks: int = 2
    nodes: int = 0


DIGITS = "--world-sizes 2"
P100 = "--device emulated:p100 --interconnect eth0 --world-sizes"
TRIALS = {
    "batch-cpu": Trial("exchange_cpu", f"{DIGITS} --strategy torch:gloo", "--batch-size 64"),
    "batch-exposed": Trial("exposed", f"{P100} 4 --strategy torch:gloo --batch-size 32", "--batch-size 64", 4, 4),
    "batch-waiting": Trial("waiting", f"{DIGITS} --strategy jax:psum", "--batch-size 64"),
    "bucket-cpu": Trial("exchange_cpu", f"{DIGITS} --strategy torch:gloo", "--option bucket_cap_mb=100"),
    "bucket-view-cpu": Trial(
        "exchange_cpu", f"{DIGITS} --strategy torch:gloo", "--option gradient_as_bucket_view=true"
    ),
    "cycle-cpu": Trial("exchange_cpu", f"{DIGITS} --strategy torch:horovod", "--option cycle_time_ms=5"),
    "servers-dedicated": Trial(
        "servers", "--world-sizes 2 --interconnect eth0 --strategy torch:ps-sync", "--server-hosts dedicated", 3, 3
    ),
    "servers-per-node": Trial(
        "exposed", f"{P100} 4 --strategy torch:ps-sync --servers 1", "--servers per-node", 4, 4
    ),
    "global-batch": Trial(
        "small_batch", f"{DIGITS} --strategy torch:gloo --global-batch-size 16", "--global-batch-size 64"
    ),
}


class Share(NamedTuple):
    """A cause's share of a step in one run, with its interval; the ends are None without one."""

    mean: float
    low: float | None
    high: float | None

    @property
    def half(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def __str__(self) -> str:
        half = "" if self.half is None else f" ± {100 * self.half:.1f}"
        return f"{100 * self.mean:5.1f} %{half}"


def main(names: Sequence[str]) -> None:
    for name in names or TRIALS:
        trial = TRIALS[name]
        say(f"{name}: {trial.cause}, {trial.flags}\n  {'without':24} {trial.change}")
        pairs = [(share(trial, ""), share(trial, trial.change)) for _ in range(TIMES)]
        for before, after in pairs:
            say(f"  {before!s:24} {after}")
        say(f"  {judged(pairs)}")


def judged(pairs: Sequence[tuple[Share, Share]]) -> str:
    """Return `lower`, if in each pair the interval with the change is below the one without; else why not."""
    apart = [
        after.high is not None and before.low is not None and after.high < before.low for before, after in pairs
    ]
    if all(apart):
        return "lower: it stays"
    means = [after.mean < before.mean for before, after in pairs]
    return "lower, but not significantly" if all(means) else "not lower: the suggestion goes"


def share(trial: Trial, change: str) -> Share:
    """Run the setting and return its cause at the largest world size."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "scaling.run", *changed(trial.flags, change)]
        command += ["--results", folder, *QUICK]
        launch(trial, command)
        (run,) = Path(folder).iterdir()
        report = [sys.executable, "-m", "scaling", "report", str(run), "--format", "json"]
        done = subprocess.run(report, cwd=ROOT, capture_output=True, text=True, check=True)
    row = max(json.loads(done.stdout)["rows"], key=lambda one: one["world_size"])
    found = row["breakdown_intervals"].get(trial.cause) or {}
    return Share(row["breakdown"][trial.cause] or 0.0, found.get("low"), found.get("high"))


def changed(flags: str, change: str) -> list[str]:
    """Return the flags with the change; a flag that both have takes the change's value."""
    flag, _, value = change.partition(" ")
    words = flags.split()
    if flag not in words or flag == "--option":
        return [*words, *change.split()]
    words[words.index(flag) + 1] = value
    return words


def launch(trial: Trial, command: Sequence[str]) -> None:
    count = ["-np", str(trial.ranks)]
    if not trial.nodes:
        run([str(ROOT / "launch" / "mpirun"), *count, *command])
        return
    with labs.lab("advice", nodes=trial.nodes, slots=1, nics=("eth0=1gbit",)) as lab:
        run([sys.executable, "-m", "scaling", "lab", "run", "--name", lab.name, "--", *count, *command])


def run(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr[-2000:]}")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
