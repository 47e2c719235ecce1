"""A process in the place of the preflight's all-reduce: it writes what NCCL would into NCCL_DEBUG_FILE, and
answers as if it had exchanged, or dies.

python -m tests.support.telling_all_reduce      (started by the preflight in a test)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from scaling.records.task import AskedAllReduce, RankAllReduce

LINES = (
    "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.1<0>",
    "NCCL INFO Using network IB",
    "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
    "NCCL INFO AllReduce: 256000000 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}",
)
WARNING = "NET/IB : Got completion from peer 10.0.0.2<55921> with status=12"
DIES = "SCALING_TEST_DIES"

if __name__ == "__main__":
    asked = msgspec.json.decode(sys.stdin.readline(), type=AskedAllReduce)
    dies = DIES in os.environ
    if name := os.environ.get("NCCL_DEBUG_FILE"):
        said = (*LINES, f"NCCL WARN {WARNING}") if dies else LINES
        Path(name.replace("%p", str(os.getpid()))).write_text("".join(f"node1:1:1 [0] {line}\n" for line in said))
    if dies:
        sys.exit("ncclSystemError")
    print(msgspec.json.encode(RankAllReduce(library=Path(asked.task.log).name)).decode(), flush=True)
    sys.stdin.read()
