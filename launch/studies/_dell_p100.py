"""The P100 study of Dell EMC again, in the lab, beside what was published.

Source: Dell EMC, "Deep Learning Performance with P100 GPUs", October 2016: 4 nodes x 4 P100-PCIe, EDR InfiniBand
at 100 Gb/s and 10 GbE; MXNet 0.7 with its parameter server, ILSVRC 2012 from NFS.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LAB = "dell-p100"
NICS = ("ib0=100gbit,10.10.0.0/24", "eth0=10gbit,10.20.0.0/24")
SIZES = (1, 2, 4, 8, 12, 16)
# images/s of GoogLeNet by world size; of Inception-BN only speedups were published: "linear at 8 and 12".
PUBLISHED_RATE = {1: 220, 2: 411, 4: 730, 8: 1472, 12: 2227, 16: 2955}
PUBLISHED_SPEEDUP = {
    "googlenet": {size: rate / PUBLISHED_RATE[1] for size, rate in PUBLISHED_RATE.items()},
    "inception_v3": {8: 8.0, 12: 12.0, 16: 14.7},
}
TITLES = {
    "googlenet": "GoogLeNet: batch 144 per device here, 144 per node there",
    "inception_v3": "Inception: v3 here; Inception-BN there, of which the speedups alone are published",
}
NETWORKS = {"ib": "InfiniBand 100 Gb/s", "ethernet": "Ethernet 10 Gb/s"}
WHY = """\
What differs, and why
  batch       The study's 144 is per MXNet worker, that is per node: 144, 72, 36 per GPU on 1, 2, 4. Here every
              device has the whole batch. Its loss of 17 % at 4 GPUs, all inside a node, is that and PCIe.
  network     The study's InfiniBand column is after its fix: at first MXNet had bound the 10 GbE card, at half
              the speed. Here every row says which card carried its bytes.
  exchange    A parameter server there, a ring all-reduce over Gloo here.
  input       ILSVRC 2012 from NFS there; here images cost nothing.
  model       torchvision has no Inception-BN; v3 is the nearest.
  devices     EMULATED: they sleep as long as one P100 computes, as published; inside a node nothing slows them.
"""


def main(arguments: list[str]) -> int:
    """Run the study; returns 0, or the exit code of the step that failed."""
    asked = _parse(arguments)
    if code := _lab("up", "--name", LAB, "--nodes", "4", "--slots", "4", *(f"--nic={nic}" for nic in NICS)):
        return code
    try:
        for model in [asked.only] if asked.only else list(TITLES):
            results = ROOT / "results" / f"{LAB}-{model}"
            if code := _sweep(model, results, asked.rounds):
                return code
            sys.stdout.write(beside(model, _rows(results)) + "\n")
            sys.stdout.flush()
    finally:
        _lab("down", "--name", LAB, "--force")
    sys.stdout.write(WHY)
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="launch/studies/dell-p100", allow_abbrev=False)
    parser.add_argument("--rounds", type=_positive, default=1)
    parser.add_argument("--only", choices=tuple(TITLES))
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1")
    return int(text)


def _lab(*arguments: str) -> int:
    return _python("-m", "scaling.lab", *arguments).returncode


def _sweep(model: str, results: Path, rounds: int) -> int:
    flags = ["--device", "emulated:p100", "--strategy", "torch:gloo", "--model", model]
    flags += ["--interconnect", ",".join(NETWORKS), "--world-sizes", ",".join(map(str, SIZES))]
    flags += ["--kinds", "exchange,solo", "--rounds", str(rounds), "--windows", "4", "--window-s", "0.1"]
    run = ["-np", "16", "python", "-m", "scaling.run", *flags, "--results", str(results)]
    return _python("-m", "scaling.lab", "run", "--name", LAB, "--", *run).returncode


def _rows(results: Path) -> list[dict[str, Any]]:
    """The rows of the latest run in this folder."""
    run = max(results.iterdir(), key=lambda folder: folder.stat().st_mtime)
    said = _python("-m", "scaling.report", str(run), "--format", "json", capture_output=True)
    said.check_returncode()
    rows: list[dict[str, Any]] = json.loads(said.stdout)["rows"]
    return rows


def _python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run([sys.executable, *arguments], check=False, env=env, cwd=ROOT, text=True, **options)


# ---------------------------------------------------------------- the table


def beside(model: str, rows: list[dict[str, Any]]) -> str:
    """The published figures and those of `rows` (report's JSON), by world size."""
    published = PUBLISHED_SPEEDUP[model]
    names = ("published", *NETWORKS.values())
    lines = [TITLES[model], f"{'N':>4}" + "".join(f"{name:>29}" for name in names)]
    lines.append(" " * 4 + f"{'images/s speedup':>29}" * len(names))
    for size in SIZES:
        rate = PUBLISHED_RATE.get(size) if model == "googlenet" else None
        cells = [_cell(rate, published.get(size), "")]
        cells += [_measured(rows, word, size) for word in NETWORKS]
        lines.append(f"{size:>4}" + "".join(cells))
    return "\n".join(lines) + "\n"


def _measured(rows: list[dict[str, Any]], word: str, size: int) -> str:
    row = next((row for row in rows if (row["interconnect"], row["world_size"]) == (word, size)), None)
    if row is None or row["samples_per_s"] is None:
        return _cell(None, None, "failed" if row else "")
    receipt = (row["receipt"] or {}).get("verdict", "")
    speedup = row["speedup"]["mean"] if row["speedup"] else None
    return _cell(row["samples_per_s"]["mean"], speedup, {"VERIFIED": "", "": ""}.get(receipt, receipt))


def _cell(rate: float | None, speedup: float | None, mark: str) -> str:
    numbers = f"{rate:.0f}" if rate is not None else "-"
    return f"{mark:>13}{numbers:>8}" + (f"{speedup:8.2f}" if speedup is not None else f"{'-':>8}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
