"""How long and in how much memory 100 MB of each tool's log are read, and what a thousand damages make of samples.

    python -m tests.bench.importers [MB]

A log is a sample's lines again and again, in a process of its own; `reads` is its seconds over those of `wc -l`.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from itertools import chain, repeat
from multiprocessing import get_context
from pathlib import Path

from scaling.errors import UsageError
from tests.support.imported_logs import SAID, SAMPLES, Said, damaged, imported, invented

DAMAGES = 1000
DEFAULT_MB = 100


def grown(name: str, size: int, folder: Path) -> Path:
    """A log of at least so many bytes."""
    text = (SAMPLES / name).read_bytes()
    path = folder / name
    with path.open("wb") as file:
        for part in chain(repeat(text, size // len(text) + 1)):
            file.write(part)
    return path


def _read(path: Path, said: Said) -> tuple[float, float, float, str]:
    began, began_cpu = time.perf_counter(), time.process_time()
    try:
        rates = [row.rate for row in imported(path, said.given).rows]
        outcome = f"{len(rates)} row, {rates[0]:g} {said.unit}/s" if rates[0] else "no rate"
    except UsageError as error:
        outcome = str(error).rpartition(": ")[2]
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    return seconds, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, outcome


def _damaged(name: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        data = (SAMPLES / name).read_bytes()
        return sum(bool(invented(one, SAID[name], Path(folder))) for one in damaged(data, 1, DAMAGES))


def main() -> None:
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MB) * 1e6)
    print(
        f"{'sample':24} {'seconds':>8} {'CPU':>6} {'reads':>6} {'MiB':>6} {'invented':>9}  {size / 1e6:g} MB say"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, said in SAID.items():
            path = grown(name, size, Path(folder))
            began = time.perf_counter()
            subprocess.run(["wc", "-l", path], check=True, stdout=subprocess.DEVNULL)
            counted_s = time.perf_counter() - began
            with get_context("spawn").Pool(1) as alone:
                seconds, cpu_s, mib, outcome = alone.apply(_read, (path, said))
            made = _damaged(name)
            print(
                f"{name:24} {seconds:8.1f} {cpu_s:6.1f} {seconds / counted_s:6.0f} {mib:6.0f} {made:9}  {outcome}",
                flush=True,
            )
            path.unlink()


if __name__ == "__main__":
    main()
