"""Coverage and width of the 95 % interval of efficiency, simulated: python -m tests.bench.intervals [RUNS [SEED]]

A line per noise and spread of the devices: coverage and mean half-width in points of this design (6 blocks a
round, every seat alone, pooled variance) with 4, 6 and 10 rounds, of its row with one rank, and of the design
before it (3 rounds of 10 windows, t(2), the first seat alone), which takes as long as 6 rounds do. It should hold
the truth in 93 to 97 % of the runs; under the noise called real its half-width must be at most 0.6 of the other's.
Then the same of both ranks where rounds are added to 4 and to 6 until intervals are narrow, as by --target-ci.
"""

from __future__ import annotations

import sys

from tests.support.simulated_intervals import NOISES, Measured, measured_until, table

NAMES = ("old", "R=4", "R=6", "R=10", "N=1")
TARGETS = (1.0, 1.5, 2.0, 3.0)


def main() -> int:
    """Print the table; 1 where a bar is missed."""
    runs, seed = [int(given) for given in (*sys.argv[1:], *("4000", "1")[len(sys.argv) - 1 :])]
    print(f"{runs} runs each, seed {seed}; coverage in %, half-width in points")
    print(f"{'noise':<22}{'devices':>8}" + "".join(f"{name:>14}" for name in NAMES))
    missed = wide = 0
    for line in table(runs, seed):
        print(f"{line['noise']:<22}{line['spread']:>8.0%}" + "".join(f"{_cell(line[name]):>14}" for name in NAMES))
        missed += sum(line[name].coverage < 0.93 for name in NAMES[1:])
        wide += sum(line[name].coverage > 0.97 for name in NAMES[1:])
        if line["noise"] == "real":
            ratio = line["R=6"].half_width / line["old"].half_width
            print(f"{'':<22}half-width {ratio:.2f} x that of the design before")
            missed += ratio > 0.6
    _until_narrow(runs, seed)
    print(f"below 93 % or too wide: {missed}; above 97 %, so wider than they need be: {wide}")
    return int(missed > 0)


def _until_narrow(runs: int, seed: int) -> None:
    print(f"{'until ± points':<22}{'from':>8}" + "".join(f"{target:>14}" for target in TARGETS))
    for name, noise in NOISES.items():
        for first in (4, 6):
            found = [measured_until(noise, target, first, runs=runs, seed=seed) for target in TARGETS]
            print(f"{name:<22}{first:>8}" + "".join(f"{_cell(one):>14}" for one in found))


def _cell(found: Measured) -> str:
    return f"{100 * found.coverage:.1f} ± {found.half_width:.2f}"


if __name__ == "__main__":
    sys.exit(main())
