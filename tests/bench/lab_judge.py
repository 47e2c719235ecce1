"""The lab as a judge of predictions: larger world sizes and other rates, predicted without their points.

python -m tests.bench.lab_judge [--results DIR] [--models vgg16,resnet50] [--only CASE,...], as root. Cases:

e1-MODEL         N = 1, 2, 4 of one node -> 8, 12, 16, over both networks
e2-MODEL         N = 1, 4, 8 of two nodes -> 16, over both networks
half-MODEL       what if eth0 had half the rate: 16 from e1's run, then measured in a lab that has
double-MODEL     the same of twice the rate

What was reached stays in DIR: the same command goes on where the last one was broken off. Light models lose up
to 4.5 % of a step to the emulator itself, so that they get twice the dilation that a run would choose.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

from scaling.analysis.table.analyse import analyse
from scaling.records import store
from scaling.records.point import Record
from tests.support import labs

NODES, SLOTS, RANKS = 4, 4, 16
RATES_GBIT = {"ib0": 100.0, "eth0": 10.0}
# The sizes of a case, and up to which they are known.
CURVES = {"e1": ("1,2,4,8,12,16", 4), "e2": ("1,4,8,16", 8)}
FACTORS = {"half": 0.5, "double": 2.0}
LIGHT = {"resnet50": 2.0, "resnet152": 2.0, "googlenet": 2.0, "googlenet-bn": 2.0}
MOST_ERROR, INSIDE = 0.05, 13 / 16


class Miss(Record, frozen=True, kw_only=True):
    """One prediction beside its measurement; efficiencies are fractions of 1."""

    case: str
    interconnect: str
    world_size: int
    predicted: float
    low: float
    high: float
    measured: float | None

    @property
    def error(self) -> float | None:
        """Predicted less measured."""
        return None if self.measured is None else self.predicted - self.measured

    @property
    def inside(self) -> bool:
        """Whether the measured one lies in the 80 % interval."""
        return self.measured is not None and self.low <= self.measured <= self.high


class Case(NamedTuple):
    """`task` is e1, e2, half or double."""

    task: str
    model: str

    @property
    def name(self) -> str:
        return f"{self.task}-{self.model}"


# ---------------------------------------------------------------- measuring


def measured(case: Case, asked: Namespace) -> Path:
    """The folder of its run, measured whole; what is there already is kept."""
    found = next(iter(sorted(asked.results.glob(f"*-{case.name}"))), None)
    done = asked.results / f"{case.name}.done"
    if found is not None and done.exists():
        return Path(found)
    with labs.lab("judge", nodes=NODES, slots=SLOTS, nics=nics(case)) as lab:
        if found is None:
            said = _run(lab.name, *_flags(case, asked, _dilate(lab.name, case, asked)))
        else:
            said = _run(lab.name, "--resume", str(found))
    sys.stdout.write(said[-asked.tail :] if asked.tail else "")
    done.write_text("")
    return Path(next(iter(sorted(asked.results.glob(f"*-{case.name}")))))


def nics(case: Case) -> tuple[str, ...]:
    """The networks of its lab."""
    factor = FACTORS.get(case.task, 1.0)
    return tuple(f"{word}={gbit * (factor if word == 'eth0' else 1.0):g}gbit" for word, gbit in RATES_GBIT.items())


def _flags(case: Case, asked: Namespace, dilate: float | None) -> list[str]:
    sizes = CURVES[case.task][0] if case.task in CURVES else f"1,{RANKS}"
    found = [*_work(case, asked), "--world-sizes", sizes, "--results", str(asked.results), "--name", case.name]
    found += ["--rounds", str(asked.rounds), "--windows", str(asked.windows), "--kinds", asked.kinds, "--no-page"]
    return found + (["--dilate", f"{dilate:g}"] if dilate else [])


def _work(case: Case, asked: Namespace) -> list[str]:
    words = ",".join(_words(case, asked))
    return ["--device", asked.device, "--model", case.model, "--strategy", asked.strategy, "--interconnect", words]


def _words(case: Case, asked: Namespace) -> list[str]:
    given = [word for word in asked.networks.split(",") if word]
    return ["eth0"] if case.task in FACTORS else given


def _dilate(name: str, case: Case, asked: Namespace) -> float | None:
    """Of light models, so many times what a run would choose; None leaves the choice to the run."""
    factor = asked.stretch or LIGHT.get(case.model, 1.0)
    if factor == 1.0:
        return None
    plan = _run(name, *_work(case, asked), "--dry-run")
    chosen = re.search(r"times x ([\d.]+)", plan)
    return factor * float(chosen[1]) if chosen else None


def _about(case: Case, asked: Namespace) -> str:
    with labs.lab("judge", nodes=NODES, slots=SLOTS, nics=nics(case)) as lab:
        flags = _flags(case, asked, _dilate(lab.name, case, asked))
        plan = _run(lab.name, *flags, "--dry-run").splitlines()
    return f"{next(line for line in plan if 'emulated: sizes' in line).strip()}: {plan[-1]}"


def _run(name: str, *flags: str) -> str:
    lab = [sys.executable, "-m", "scaling", "lab", "run", "--name", name]
    words = [*lab, "--", "-np", str(RANKS), sys.executable]
    done = subprocess.run(
        [*words, "-m", "scaling.run", *flags], cwd=labs.ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(flags)}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr}")
    return done.stdout


# ---------------------------------------------------------------- judging


def held_back(case: Case, asked: Namespace) -> Iterator[Miss]:
    """The larger world sizes, predicted as if only the smaller ones had been measured."""
    folder, (sizes, known) = measured(case, asked), CURVES[case.task]
    larger = [size for size in sizes.split(",") if int(size) > known]
    rows = analyse(store.load(folder)[1]).rows
    for word in _words(case, asked):
        seen = {one.world_size: one.efficiency.mean for one in rows if one.interconnect == word and one.efficiency}
        flags = ["--interconnect", word, "--up-to", str(known), "--world-sizes", ",".join(larger)]
        for row in json.loads(_foreseen(folder, *flags))["predicted"]:
            size = row["at"]["world_size"]
            yield Miss(
                case=case.name, interconnect=word, world_size=size, predicted=row["efficiency"], low=row["low"],
                high=row["high"], measured=seen.get(size),
            )  # fmt: skip


def what_if(case: Case, asked: Namespace) -> Iterator[Miss]:
    """Another rate, predicted from e1's run and kept in a file before the lab has that rate."""
    kept = asked.results / f"{case.name}.json"
    if not kept.exists():
        rate = RATES_GBIT["eth0"] * FACTORS[case.task]
        flags = [
            "--interconnect",
            "eth0",
            "--world-sizes",
            str(RANKS),
            "--network",
            f"tcp:{rate:g}",
            "--up-to",
            "8",
        ]
        kept.write_text(_foreseen(measured(Case("e1", case.model), asked), *flags))
    (row,) = json.loads(kept.read_text())["predicted"]
    rows = analyse(store.load(measured(case, asked))[1]).rows
    seen = [one.efficiency.mean for one in rows if one.world_size == RANKS and one.efficiency]
    yield Miss(
        case=case.name, interconnect="eth0", world_size=RANKS, predicted=row["efficiency"], low=row["low"],
        high=row["high"], measured=seen[0] if seen else None,
    )  # fmt: skip


def _foreseen(run: Path, *flags: str) -> str:
    words = [sys.executable, "-m", "scaling", "predict", str(run), *flags, "--format", "json"]
    return subprocess.run(words, cwd=labs.ROOT, capture_output=True, text=True, check=True).stdout


def table(found: Sequence[Miss]) -> str:
    """A line each, then how many fell inside; ends in what must be reached."""
    head = f"{'case':<18} {'network':<8} {'N':>3}  PREDICTED  80 %        measured  error  inside\n"
    lines = []
    for one in found:
        between = f"{100 * one.low:.0f} to {100 * one.high:.0f}"
        seen = "-" if one.measured is None else f"{100 * one.measured:.1f}"
        off = "" if one.error is None else f"{100 * one.error:+.1f}"
        inside = "yes" if one.inside else "no"
        figures = f"{100 * one.predicted:>9.1f}  {between:<10}  {seen:>8}  {off:>5}  {inside}"
        lines.append(f"{one.case:<18} {one.interconnect:<8} {one.world_size:>3}  {figures}\n")
    return head + "".join(lines) + _verdict([one for one in found if one.measured is not None])


def _verdict(found: Sequence[Miss]) -> str:
    errors = [abs(one.error) for one in found if one.error is not None]
    if not errors:
        return "nothing was measured\n"
    inside, near = sum(one.inside for one in found), sum(error <= MOST_ERROR for error in errors)
    reached = near == len(errors) and inside >= INSIDE * len(errors)
    off = f"|error| median {100 * median(errors):.1f}, largest {100 * max(errors):.1f} points"
    return (
        f"{inside} of {len(errors)} inside their 80 % interval, {near} within 5 points; {off}\n"
        f"must reach: all within 5 points, 13 of 16 inside: {'reached' if reached else 'missed'}\n"
    )


def cases(asked: Namespace) -> list[Case]:
    models = [model for model in asked.models.split(",") if model]
    every = [Case(task, model) for model in models for task in (*CURVES, *FACTORS)]
    return [case for case in every if not asked.only or case.name in asked.only.split(",")]


def parsed(argv: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = ArgumentParser(prog="python -m tests.bench.lab_judge", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/lab-judge"))
    parser.add_argument("--models", default="vgg16,resnet50")
    parser.add_argument("--networks", default="ib0,eth0")
    parser.add_argument("--device", default="emulated:p100")
    parser.add_argument("--strategy", default="torch:gloo")
    # Each device alone sleeps as long as the first: nothing is learned from all of them, one by one.
    parser.add_argument("--kinds", default="exchange,solo,together,comm")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--stretch", type=float, help="times the dilation that a run chooses; 2 for light models")
    parser.add_argument("--only", default="", help="such as e1-vgg16,half-vgg16")
    parser.add_argument("--tail", type=int, default=0, help="characters of each run's output to print")
    parser.add_argument("--dry-run", action="store_true", help="print how long each case takes; measure nothing")
    asked = parser.parse_args(argv)
    asked.results = asked.results.resolve()
    return asked


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and judge; print a line as each case ends, the whole table last."""
    asked = parsed(argv)
    asked.results.mkdir(parents=True, exist_ok=True)
    if asked.dry_run:
        sys.stdout.write("".join(f"{case.name:<18} {_about(case, asked)}\n" for case in cases(asked)))
        return 0
    found: list[Miss] = []
    for case in cases(asked):
        began_s = monotonic()
        judge: Any = held_back if case.task in CURVES else what_if
        found += judge(case, asked)
        sys.stdout.write(f"{case.name}: {monotonic() - began_s:.0f} s\n")
        sys.stdout.flush()
    sys.stdout.write(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
