"""Gloo's all-reduce in a lab against the rate that its links are shaped to: 0.92 to 0.956 (the framing ceiling).

python -m tests.bench.lab_gloo [NODESxSLOTS...], as root. busbw is what a ring moves over each link: 2 (n - 1) / n
of the tensor, n ranks, over the time of the slowest rank; within a node it goes over the loopback, unshaped.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from scaling.tools.lab import lifecycle, shapes
from scaling.tools.lab.state import Lab
from tests.support import labs

SETTINGS = {"4x1": ("100mbit", "500mbit", "1gbit"), "4x4": ("100mbit", "250mbit", "500mbit")}
SIZES_MB = (25, 100)
TARGET_S = 6.0
BAR, CEILING = 0.92, 0.956


def main() -> None:
    sys.stdout.write("nodes x ranks  rate      MB   busbw/rate\n")
    for setting in sys.argv[1:] or SETTINGS:
        nodes, slots = map(int, setting.split("x"))
        with labs.lab("gloo", nodes=nodes, slots=slots, nics=("ib0=100mbit", "eth0=1gbit")) as lab:
            for text in SETTINGS.get(setting, ("100mbit",)):
                lifecycle.change(lab.name, [f"ib0={text}"])
                rate = shapes.parse_rate(text, setting)
                for size_mb in SIZES_MB:
                    share = busbw_bits_per_s(lab, nodes * slots, size_mb, rate) / rate
                    sys.stdout.write(f"{setting:<14} {text:<9} {size_mb:<4} {share:.3f}\n")
                    sys.stdout.flush()
    sys.stdout.write(f"must reach {BAR} to {CEILING}\n")


def busbw_bits_per_s(lab: Lab, ranks: int, size_mb: int, rate_bits_per_s: float) -> float:
    """Median over some all-reduces, after one that is not counted."""
    one_s = 2 * (ranks - 1) / ranks * size_mb * 8e6 / rate_bits_per_s
    count = max(2, min(10, int(TARGET_S / one_s)))
    words = [
        sys.executable,
        "-m",
        "scaling",
        "lab",
        "run",
        "--name",
        lab.name,
        "--",
        "-np",
        str(ranks),
        sys.executable,
    ]
    words += ["-m", "tests.bench.lab_gloo", "rank", str(ranks), str(size_mb), str(count)]
    done = subprocess.run(words, cwd=labs.ROOT, capture_output=True, text=True, check=True, timeout=600)
    slowest_s = [float(word) for word in done.stdout.split()]
    return 2 * (ranks - 1) / ranks * size_mb * 8e6 / statistics.median(slowest_s)


def rank(ranks: int, size_mb: int, count: int) -> None:
    """One rank; the first prints the time that the slowest took for each all-reduce."""
    import torch
    import torch.distributed as dist

    number = int(next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ))
    os.environ["GLOO_SOCKET_IFNAME"] = "ib0"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="tcp://10.10.0.1:6000", rank=number, world_size=ranks)
    tensor = torch.zeros(size_mb * 250_000)
    for index in range(count + 1):
        dist.barrier()
        start_s = time.monotonic()
        dist.all_reduce(tensor)
        slowest_s = torch.tensor([time.monotonic() - start_s])
        dist.all_reduce(slowest_s, dist.ReduceOp.MAX)
        if number == 0 and index:
            print(float(slowest_s), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads abort an interpreter that ends while others still talk


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(*map(int, sys.argv[2:]))
    else:
        main()
