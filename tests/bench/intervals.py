"""Coverage and width of the 95 % interval of efficiency, simulated: python -m tests.bench.intervals [RUNS [SEED]]

A line per noise and spread of the devices: coverage and mean half-width in points of this design (6 blocks a
round, every seat alone, pooled variance) with 4, 6 and 10 rounds, of both ranks and of one, and of the design
before it (3 rounds of 10 windows, t(2), the first seat alone), which takes as long as 6 rounds do. It should hold
the truth in 93 to 97 % of the runs; under the noise called real its half-width must be at most 0.6 of the other's.
Then the same of both ranks where rounds are added to 4 and to 6 until intervals are narrow, as by --target-ci.
Both follow for points that are measured alone, one after the other (5 windows a round, a start before each).
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from tests.bench.simulated_intervals import (
    ALONE,
    NOISES,
    ROUNDS,
    SIDE_BY_SIDE,
    SIZES,
    Design,
    Measured,
    Noise,
    measured_old,
    measured_until,
    name_of,
    table,
)

NAMES = tuple(name_of(size, rounds) for size in SIZES for rounds in ROUNDS)
SPREADS = (0.0, 0.02, 0.05)
TARGETS = (1.0, 1.5, 2.0, 3.0)


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def parsed(argv: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = _Parser(prog="python -m tests.bench.intervals", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("runs", metavar="RUNS", nargs="?", type=_from(1), default=4000, help="of each line (4000)")
    parser.add_argument("seed", metavar="SEED", nargs="?", type=_from(0), default=1, help="of all dice (1)")
    return parser.parse_args(argv)


def _from(least: int) -> Callable[[str], int]:
    """A reader of whole numbers that are not below this: coverage of no run is no number."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"{text}: a whole number, {least} or more")
        return int(text)

    return read


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; 1 where a bar is missed."""
    asked = parsed(argv)
    runs, seed = asked.runs, asked.seed
    print(f"{runs} runs each, seed {seed}; coverage in %, half-width in points")
    missed = wide = 0
    for title, design in (("side by side", SIDE_BY_SIDE), ("alone", ALONE)):
        names = (*NAMES, "old") if design is SIDE_BY_SIDE else NAMES
        print(f"{title:<22}{'devices':>8}" + "".join(f"{name:>14}" for name in names))
        for name, noise in NOISES.items():
            for line in _lines(name, noise, design, runs, seed):
                missed += sum(line[column].coverage < 0.93 for column in NAMES) + _is_too_wide(name, line)
                wide += sum(line[column].coverage > 0.97 for column in NAMES)
        _until_narrow(design, runs, seed)
    print(f"below 93 % or too wide: {missed}; above 97 %, so wider than they need be: {wide}")
    return int(missed > 0)


def _lines(name: str, noise: Noise, design: Design, runs: int, seed: int) -> Iterator[dict[str, Measured]]:
    for spread in SPREADS:
        line = table(noise, spread, runs=runs, seed=seed, design=design)
        if design is SIDE_BY_SIDE:
            line["old"] = measured_old(noise, spread, runs=runs, seed=seed)
        print(f"{name:<22}{spread:>8.0%}" + "".join(f"{_cell(one):>14}" for one in line.values()))
        yield line


def _is_too_wide(name: str, line: dict[str, Measured]) -> bool:
    if name != "real" or "old" not in line:
        return False
    ratio = line[name_of(2, 6)].half_width / line["old"].half_width
    print(f"{'':<22}half-width {ratio:.2f} x that of the design before")
    return ratio > 0.6


def _until_narrow(design: Design, runs: int, seed: int) -> None:
    print(f"{'until ± points':<22}{'from':>8}" + "".join(f"{target:>14}" for target in TARGETS))
    for name, noise in NOISES.items():
        for first in (4, 6):
            found = [measured_until(noise, one, first, runs=runs, seed=seed, design=design) for one in TARGETS]
            print(f"{name:<22}{first:>8}" + "".join(f"{_cell(one):>14}" for one in found))


def _cell(found: Measured) -> str:
    return f"{100 * found.coverage:.1f} ± {found.half_width:.2f}"


if __name__ == "__main__":
    sys.exit(main())
