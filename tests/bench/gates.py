"""How often `scaling compare` is red on nothing, and the loss of one cell that it finds, simulated with a seed.

Launches of 6 and 40 cells and five rounds, with 1 % of noise from process start to process start and more from
launch to launch. Standard error of a share of 5 %: 0.7 and 1.3 points.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.bench.simulated_gates import Gate, pool

# By cells: comparisons of each line, and analysed launches that they draw from.
SIZES = {6: (1000, 200), 40: (300, 60)}
HALF_NOISIER = {"uneven": 3.0}
GATES: tuple[tuple[str, dict[str, Any]], ...] = (
    *((f"{100 * sd:g} %", {"launch_sd": sd, "runs": runs}) for sd in (0.0, 0.005, 0.01) for runs in (1, 3)),
    *(("0.5 and 1.5 %", {"launch_sd": 0.005, "runs": runs, **HALF_NOISIER}) for runs in (1, 3)),
    *((f"{100 * sd:g} %, 9 older runs", {"launch_sd": sd, "older": 9}) for sd in (0.0, 0.005, 0.01)),
    ("0.5 and 1.5 %, 9 older runs", {"launch_sd": 0.005, "older": 9, **HALF_NOISIER}),
)


def main() -> None:
    out = sys.stdout.write
    for cells, (comparisons, launches) in SIZES.items():
        analysed = pool(cells, launches)
        out(f"{cells} cells: red on nothing of {comparisons}, % (--fail-above 0, 2 %); loss said to be found in ")
        out("80 %, found in %\n")
        for name, noise in GATES:
            gate = Gate(analysed, **noise)
            red = [gate.share_red(comparisons, limit) for limit in (0.0, 0.02)]
            lost, found = gate.power(comparisons // 2, 0.02)
            out(f"  {name:28} {gate.runs} a side {red[0]:7.1f} {red[1]:7.1f} {lost:7.1f} % {found:7.1f}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
