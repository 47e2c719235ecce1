"""How often `scaling bisect` finds exactly the slow nodes, and by how many points, simulated with a seed.

Standard error of a share of 100: up to 3 points where it is 90 %.
"""

from __future__ import annotations

import random
import sys
from statistics import median

from tests.bench.simulated_nodes import right, searched

RUNS = 100
# Nodes, slow ones, by which part, at which noise.
CASES = (
    (16, 0, 0.0, 0.03),
    (4, 0, 0.0, 0.03),
    (3, 1, 0.2, 0.03),
    (4, 1, 0.2, 0.03),
    (8, 1, 0.2, 0.03),
    (16, 1, 0.2, 0.03),
    (16, 2, 0.2, 0.03),
    (16, 1, 0.5, 0.03),
    (16, 1, 0.1, 0.03),
    (16, 1, 0.1, 0.01),
    (32, 1, 0.2, 0.03),
)


def main() -> None:
    out = sys.stdout.write
    out(f"nodes  slow  by %  noise %   right of {RUNS}, %   points: median, most   waves: median, most\n")
    for nodes, slow, part, noise in CASES:
        rng = random.Random(5)
        found = [searched(nodes, slow, part, noise, rng) for _ in range(RUNS)]
        points, waves = [one.points for one in found], [one.waves for one in found]
        out(
            f"{nodes:5} {slow:5} {100 * part:5.0f} {100 * noise:8.0f} {100 * right(found):16.1f}"
            f" {median(points):20.0f} {max(points):6} {median(waves):16.0f} {max(waves):6}\n"
        )


if __name__ == "__main__":
    main()
