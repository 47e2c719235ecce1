"""How often `scaling compare` is red on nothing and on a true loss of 5 %, simulated with a seed.

Launches of six cells with 1 % of noise from process start to process start, and more from launch to launch; by the
rounds of one launch a side, and by three launches a side. Standard error of a share: up to 2.5 points.
"""

from __future__ import annotations

import sys

from tests.support.compared_runs import share_red

PAIRS = 400
ROUNDS = 5
# Every other cell differs more from launch to launch.
UNEVEN = (0.005, 3, 3.0)


def main() -> None:
    out = sys.stdout.write
    out(f"red of {PAIRS} pairs, %: on nothing (--fail-above 0, 2 %), on a loss of 5 %\n")
    for launch_sd, runs, uneven in (*((sd, runs, 1.0) for sd in (0.0, 0.005, 0.01) for runs in (1, 3)), UNEVEN):
        noise = {"runs": runs, "rounds": ROUNDS, "launch_sd": launch_sd, "uneven": uneven}
        shares = [share_red(PAIRS, limit, lost=lost, **noise) for limit, lost in ((0, 0), (0.02, 0), (0.02, 0.05))]
        told = "".join(f"{share:8.1f}" for share in shares)
        half = f" and {uneven:g} x as much" if uneven != 1 else ""
        out(f"  launches differ by {100 * launch_sd:3.1f} %{half}, {runs} a side {told}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
