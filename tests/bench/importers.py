"""How long and in how much memory 100 MB of each tool's log are read, and what a thousand damages make of samples.

    python -m tests.bench.importers [MB] [SAMPLE...]

A log is a sample's lines again and again, in a process of its own; `reads` is its seconds over those of `wc -l`.
Logs marked `+` repeat one line with rising steps. `SHORT` has lines of 25 bytes, which `--rate` reads.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
import time
from itertools import chain, repeat
from multiprocessing import get_context
from pathlib import Path

from scaling.errors import UsageError
from scaling.tools.importers.logs import Form, Given
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


# where a line with a rate has its step, for logs with rising steps
STEPS = {
    "horovod_n1.log": r"(?<=Iter #)\d+",
    "lightning_bar.log": r"(?<=\| )\d+(?=/18)",
    "tf_cnn_2.log": r"^\d+(?=\timages/sec)",
    "torchtitan.log": r"(?<=step: )\d+",
}


def risen(name: str, size: int, folder: Path) -> Path:
    """A log of at least so many bytes: one launch whose steps never repeat."""
    lines = (SAMPLES / name).read_text().splitlines(keepends=True)
    place = max(place for place, line in enumerate(lines) if re.search(STEPS[name], line))
    before, after = re.split(STEPS[name], lines[place], maxsplit=1)
    path = folder / f"{name}+"
    with path.open("w") as file:
        file.writelines(lines[:place])
        for step in range(100, 100 + size // len(lines[place])):
            file.write(f"{before}{step}{after}")
        file.writelines(lines[place + 1 :])
    return path


SHORT = "short lines"
_OF_SHORT = Form(rate=r"([\d.]+) tok/s", unit="tokens", step=r"iter (\d+)")


def short(name: str, size: int, folder: Path) -> Path:
    path = folder / name
    with path.open("w") as file:
        file.writelines(f"iter {step} {5000 + step % 97:.1f} tok/s\n" for step in range(size // 25))
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
    said_by = {**SAID, SHORT: Said("generic", 4, 0, 5048.0, "tokens", Given(world_size=4, form=_OF_SHORT))}
    names = sys.argv[2:] or list(said_by)
    print(
        f"{'sample':24} {'seconds':>8} {'CPU':>6} {'reads':>6} {'MiB':>6} {'invented':>9}  {size / 1e6:g} MB say"
    )
    with tempfile.TemporaryDirectory() as folder:
        makers = [(grown, name) for name in names if name != SHORT]
        makers += [(risen, name) for name in STEPS if name in names] + [
            (short, name) for name in names if name == SHORT
        ]
        for make, name in makers:
            path, said = make(name, size, Path(folder)), said_by[name]
            began = time.perf_counter()
            subprocess.run(["wc", "-l", path], check=True, stdout=subprocess.DEVNULL)
            counted_s = time.perf_counter() - began
            with get_context("spawn").Pool(1) as alone:
                seconds, cpu_s, mib, outcome = alone.apply(_read, (path, said))
            made = _damaged(name) if make is grown else 0
            reads = seconds / counted_s
            print(
                f"{path.name:24} {seconds:8.1f} {cpu_s:6.1f} {reads:6.0f} {mib:6.0f} {made:9}  {outcome}",
                flush=True,
            )
            path.unlink()


if __name__ == "__main__":
    main()
