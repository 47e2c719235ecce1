"""Repeats BEEVA's fine-tuning on several GPUs on this machine and prints it with the published figures.

Source: BEEVA Labs, "Accelerating the training of deep neural networks with MxNet on AWS P3 instances", 2018:
ResNet-152 and ResNet-50 of ImageNet, fine-tuned to Caltech-256 (15,240 images) on 1 and 8 K80 and on 1 and 4 V100.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from launch.studies._digits import halves, headless
from launch.studies._study import RING, Failed, Json, called_from, number, positive, seeds, sweep, table

# batch and rate of one device, the pairs of the study's commands
GRID = ((16, 0.00125), (32, 0.0025))
LEARNT_BEFORE = 5  # epochs


class Published(NamedTuple):
    """Published figures of a network: GPUs, speedup over one GPU, top-1 in percent after 1 and 6 epochs."""

    what: str
    devices: int
    speedup: float
    first: str
    sixth: str


# Speedups from the text: 7.7 for ResNet-152, "94 % efficiency" of 8 for ResNet-50.
PUBLISHED = (
    Published("ResNet-152 of ImageNet-11k", 8, 7.7, "83.0 to 84.3", "86.5"),
    Published("ResNet-50 of ImageNet-1k", 8, 7.52, "-", "75.5"),
)
WHY = """\
What differs, and why
  data        Handwritten digits: 0 to 4 are learnt first, 5 to 9 are fine-tuned to. There ImageNet and
              Caltech-256, of which nothing comes along; with --full your own copies.
  network     digits-cnn, drawn and trained here; with --full ResNet-50. ResNet-152 of ImageNet-11k is MXNet's own
              network (v2), which is not among ours.
  last layer  Drawn anew, as there. With --full it keeps ImageNet's 1,000 outputs, the first 257 of them in use.
  batch, rate As there: 16 with 0.00125, 32 with 0.0025, both times the number of devices (--lr-scale linear).
  epochs      One, as the study's grid, or --epochs; 86.5 % and 75.5 % are after six.
  speedup     By the rates of trainings of seconds, the first step included, on cores of one machine: no finding of
              how well anything scales. For that leave --epochs out.
  classes     The study says --num-classes 256 of Caltech's 257 folders: label 256 was out of range.
"""


def main(arguments: list[str]) -> int:
    """Return 1 if a training failed, or the exit code of a run that did not end."""
    asked = _parse(arguments)
    try:
        tuned, drawn = _real(asked) if asked.full else _stand_in(asked)
    except Failed as failed:
        return int(failed.args[0])
    except ModuleNotFoundError as error:
        sys.stderr.write(f"launch/studies/beeva: {error}\n")
        return 2
    sys.stdout.write(f"\n{here(tuned, drawn)}\n{published()}\n{WHY}")
    return int(any(one["failed"] for one in (*tuned, *drawn)))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="launch/studies/beeva", allow_abbrev=False)
    parser.add_argument("--framework", choices=tuple(RING), default="torch")
    parser.add_argument("--ranks", type=positive, default=2)
    parser.add_argument("--epochs", type=positive, default=1)
    parser.add_argument("--seeds", type=seeds, default="0")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--weights", type=called_from)
    parser.add_argument("--data-dir", type=called_from)
    asked = parser.parse_args(arguments)
    if asked.full and not (asked.weights and asked.data_dir):
        parser.error("--full: needs --weights, a file of ResNet-50's, and --data-dir, with 256_ObjectCategories")
    if not asked.full and (asked.weights or asked.data_dir):
        parser.error("--weights and --data-dir are of --full; the stand-in makes its own")
    return asked


def _real(asked: argparse.Namespace) -> tuple[list[Json], list[Json]]:
    """Without training from drawn weights, which would take days."""
    work = (
        "--model",
        "resnet50",
        "--data",
        "caltech256",
        "--data-dir",
        asked.data_dir,
        "--weights",
        asked.weights,
    )
    return _grid(asked, work), []


def _stand_in(asked: argparse.Namespace) -> tuple[list[Json], list[Json]]:
    with tempfile.TemporaryDirectory(prefix="beeva-") as folder:
        before, after = halves(Path(folder))
        learnt = Path(folder) / "learnt.npz"
        work = ("--model", "digits-cnn", "--image-size", "16", "--data", "folders", "--data-dir")
        first, rate = GRID[0]
        learning = sweep(
            "beeva", *work, str(before), "--strategy", RING[asked.framework], "--world-sizes", "1",
            "--batch-size", str(first), "--lr", str(rate), "--epochs", str(LEARNT_BEFORE),
            "--save-weights", str(learnt),
        )  # fmt: skip
        if learning["exit_code"]:
            raise Failed(learning["exit_code"])
        headless(learnt)
        tuned = _grid(asked, (*work, str(after), "--weights", str(learnt)))
        return tuned, _grid(asked, (*work, str(after)))


def _grid(asked: argparse.Namespace, work: tuple[str, ...]) -> list[Json]:
    sizes = ",".join(map(str, sorted({1, asked.ranks})))
    found: list[Json] = []
    for batch_size, rate in GRID:
        flags = (
            "--strategy", RING[asked.framework], "--world-sizes", sizes, "--batch-size", str(batch_size),
            "--lr", str(rate), "--lr-scale", "linear", "--epochs", str(asked.epochs), "--seeds", asked.seeds,
        )  # fmt: skip
        found += sweep("beeva", *work, *flags, ranks=asked.ranks)["trainings"]
    return found


def here(tuned: list[Json], drawn: list[Json]) -> str:
    scratch = {_setting(one): _top1(one) for one in drawn}
    rows = [
        (
            str(one["world_size"]), str(one["update_samples"]), f"{one['regime']['rate']:g}",
            number(_top1(one), 1), number(scratch.get(_setting(one)), 1), number(one["samples_per_s"], 0),
            number(_speedup(one, tuned), 2),
        )
        for one in tuned
    ]  # fmt: skip
    heads = ("devices", "batch", "rate", "fine-tuned, %", "from drawn weights, %", "images/s", "x one device")
    epochs = tuned[0]["regime"]["epochs"] if tuned else 0
    return table(f"Held-out top-1 after {epochs} epoch{'s' * (epochs != 1)}", heads, rows)


def _setting(one: Json) -> tuple[int, int]:
    return one["world_size"], one["batch_size"]


def _top1(one: Json) -> float | None:
    return 100 * one["top1"][-1] if one["top1"] else None


def _speedup(one: Json, others: Iterable[Json]) -> float | None:
    alone = next((each for each in others if _setting(each) == (1, one["batch_size"])), None)
    if alone is None or not alone["samples_per_s"] or not one["samples_per_s"]:
        return None
    return float(one["samples_per_s"] / alone["samples_per_s"])


def published() -> str:
    rows = [(one.what, str(one.devices), number(one.speedup, 2), one.first, one.sixth) for one in PUBLISHED]
    heads = ("", "K80", "x one device", "top-1 after 1 epoch, %", "after 6, %")
    return table("Published: fine-tuned to Caltech-256", heads, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
