"""Repeats Dell EMC's P100 study in the lab and prints it with the published figures.

Source: Dell EMC, "Deep Learning Performance with P100 GPUs", October 2016: 4 nodes x 4 P100-PCIe, EDR InfiniBand
at 100 Gb/s and 10 GbE, MXNet 0.7 with its parameter server, ILSVRC 2012 from NFS.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from launch.studies._study import RESULTS, Failed, Json, ended, obeyed, positive, python, runs, worst

LAB = "dell-p100"
NICS = ("ib0=100gbit,10.10.0.0/24", "eth0=10gbit,10.20.0.0/24")
SIZES = (1, 2, 4, 8, 12, 16)
# images/s of GoogLeNet by world size; for Inception-BN only speedups ("linear at 8 and 12")
PUBLISHED_RATE = {1: 220, 2: 411, 4: 730, 8: 1472, 12: 2227, 16: 2955}
PUBLISHED_SPEEDUP = {
    "googlenet": {size: rate / PUBLISHED_RATE[1] for size, rate in PUBLISHED_RATE.items()},
    "inception_v3": {8: 8.0, 12: 12.0, 16: 14.7},
}
TITLES = {
    "googlenet": "GoogLeNet at 256 px: batch 144 per node, here as there",
    "inception_v3": "Inception: v3 here; Inception-BN there, of which the speedups alone are published",
}
NETWORKS = {"ib": "InfiniBand 100 Gb/s", "ethernet": "Ethernet 10 Gb/s"}
# GoogLeNet: 144 per node with MXNet. Inception-BN: 64, 128, 256 on 1, 2, 4, which is 64 on each.
BATCHES = {
    "googlenet": ("--image-size", "256", "--batch-rule", "node", "--batch-size", "144"),
    "inception_v3": ("--batch-size", "64"),
}
# above it the emulator's error is unknown, as rows report
MOST_BUSY_PERCENT = 80
# Notes about a row's emulation; the last one is about an overloaded machine.
SAID = ("FITTED", "not emulated", "the last bucket", "CPUs")
# what the emulated rows cannot show, because it was an input
INSIDE = "PCIe inside the node and the images' way to the GPUs"
BETWEEN = "how a parameter server would do between nodes, since a ring runs here; the feed of images from NFS"
UNKNOWN = {
    "googlenet": {
        1: "nothing of its own: the published rate is what its device is told to do",
        2: f"{INSIDE}; batch 72 follows from rows 1 and 4: the one row of one node that could have failed",
        4: f"{INSIDE}: batch 36 is fitted to this row as published, so that all of its loss counts as small batch",
        **dict.fromkeys((8, 12, 16), f"{INSIDE}, but for what row 4 has of it; {BETWEEN}"),
    },
    "inception_v3": {
        1: "Inception-BN: v3's published rate is what its device is told to do",
        **dict.fromkeys((2, 4), f"Inception-BN; {INSIDE}"),
        **dict.fromkeys((8, 12, 16), f"Inception-BN; {INSIDE}; {BETWEEN}"),
    },
}
WHY = """\
What differs, and why
  batch       As there: GoogLeNet's 144 is per MXNet worker, that is per node: 144, 72, 36 per GPU on 1, 2, 4.
              Rates at 72 and 36 are FITTED, c b / (b + h), to the published ones of one and of four GPUs.
  images      GoogLeNet's have 256 px, as there (its table 2), which makes 1.2 times the operations of 224.
  network     The study's InfiniBand column is after its fix: at first MXNet had bound the 10 GbE card, at half
              the speed. Here every row says which card carried its bytes.
  exchange    A parameter server there, a ring all-reduce over Gloo here.
  input       ILSVRC 2012 from NFS there; here images cost nothing.
  model       Of Inception-BN on a P100 no images/s are published, which an emulated one needs; v3 is the nearest.
  devices     EMULATED: they sleep as long as one P100 computes, as published; inside a node nothing slows them.
"""


def main(arguments: list[str]) -> int:
    """Return 1 if a point failed, or the exit code of a step that did not end."""
    asked = _parse(arguments)
    if code := _lab("up", "--name", LAB, "--nodes", "4", "--slots", "4", *(f"--nic={nic}" for nic in NICS)):
        return code
    found = []
    try:
        for model in [asked.only] if asked.only else list(TITLES):
            found.append(_sweep(model, asked.rounds))
            rows = found[-1]["rows"]
            sys.stdout.write(f"{beside(model, rows)}\n{unknown(model, rows)}\n")
            sys.stdout.flush()
    except Failed as failed:
        return int(failed.args[0])
    finally:
        _lab("down", "--name", LAB, "--force")
    sys.stdout.write(WHY)
    return worst(found)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="launch/studies/dell-p100", allow_abbrev=False)
    parser.add_argument("--rounds", type=positive, default=1)
    parser.add_argument("--only", choices=tuple(TITLES))
    return parser.parse_args(arguments)


def _lab(*arguments: str) -> int:
    return python("-m", "scaling", "lab", *arguments).returncode


def _sweep(model: str, rounds: int) -> Json:
    results = RESULTS / f"{LAB}-{model}"
    before = runs(results)
    flags = ["--device", "emulated:p100", "--strategy", "torch:gloo", "--model", model, *BATCHES[model]]
    flags += ["--interconnect", ",".join(NETWORKS), "--world-sizes", ",".join(map(str, SIZES))]
    flags += ["--kinds", "exchange,solo", "--rounds", str(rounds), "--windows", "4", "--window-s", "0.1"]
    run = ["-np", "16", "python", "-m", "scaling.run", "--verbose", *flags, "--results", str(results)]
    lab = [sys.executable, "-m", "scaling", "lab", "run", "--name", LAB, "--", *run]
    return ended(obeyed(lab), results, before)


def beside(model: str, rows: list[dict[str, Any]]) -> str:
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
    row = _row(rows, word, size)
    if row is None or row["samples_per_s"] is None:
        return _cell(None, None, "failed" if row else "")
    receipt = (row["receipt"] or {}).get("verdict", "")
    speedup = row["speedup"]["mean"] if row["speedup"] else None
    return _cell(row["samples_per_s"]["mean"], speedup, {"VERIFIED": "", "": ""}.get(receipt, receipt))


def _row(rows: list[dict[str, Any]], word: str, size: int) -> dict[str, Any] | None:
    return next((row for row in rows if (row["interconnect"], row["world_size"]) == (word, size)), None)


def _cell(rate: float | None, speedup: float | None, mark: str) -> str:
    numbers = f"{rate:.0f}" if rate is not None else "-"
    return f"{mark:>13}{numbers:>8}" + (f"{speedup:8.2f}" if speedup is not None else f"{'-':>8}")


def unknown(model: str, rows: list[dict[str, Any]]) -> str:
    lines = ["What the EMULATED rows cannot know"]
    for size in SIZES:
        lines.append(f"{size:>4}  {UNKNOWN[model][size]}")
        lines += [f"      {line}" for line in dict.fromkeys(_said(rows, size))]
    return "\n".join(lines) + "\n"


def _said(rows: list[dict[str, Any]], size: int) -> Iterator[str]:
    for word, name in NETWORKS.items():
        row = _row(rows, word, size) or {}
        told, busy_percent = row.get("emulation"), row.get("machine_cpu_percent") or 0.0
        if told and row["samples_per_s"] and size > 1 and busy_percent <= MOST_BUSY_PERCENT:
            yield f"{name}: the emulator is up to {100 * told['error_fraction']:.1f} % of a step too slow"
        yield from (note for note in row.get("footnotes", ()) if note.startswith(SAID))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
