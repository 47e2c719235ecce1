"""Repeats Addfor's benchmark of networks and minibatches on this machine and prints it with the published figures.

Source: Addfor, on benchmarks for a DGX-1, 2017: seven networks on K40, Titan X, GTX 1080 and Titan X Pascal in
Torch, Caffe, TensorFlow and Neon, forward and forward + backward of 64 samples. Only figures of its text are in
PUBLISHED.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from launch.studies._study import Failed, Json, number, positive, sweep, table, worst

# ms of forward + backward of VGG in TensorFlow on a GTX 1080, by minibatch
PUBLISHED = {64: 420.28, 128: 899.86}
NETWORKS = ("alexnet", "overfeat", "googlenet", "resnet50")
FULL = ("alexnet", "overfeat", "vgg16", "googlenet", "resnet50", "resnet101", "resnet152")
SWEPT = "alexnet"
WHY = """\
What differs, and why
  device      A CPU here unless there are GPUs; GPUs of 2013 to 2016 there.
  minibatch   2 samples here, so that two cores are done in minutes; 64 there, and here with --full.
  VGG         VGG-16, only with --full: the slowest of all on a CPU.
  OverFeat    The fast one of the paper's two, with its two dropouts, which the study's scripts left out.
  runs        As many as fill the windows, after warming up until times are steady; 100 there.
  data        Noise, as there.
"""


def main(arguments: list[str]) -> int:
    """Return 1 if a point failed, or the exit code of a run that did not end."""
    asked = _parse(arguments)
    batch = asked.batch_size or (64 if asked.full else 2)
    strategy, passes = f"{asked.framework}:plain", ("--pass", "forward,backward")
    common = (
        "--strategy",
        strategy,
        *passes,
        "--data",
        "synthetic",
        "--rounds",
        str(asked.rounds),
        "--windows",
        "3",
    )
    try:
        found = [
            (name, sweep("addfor", "--model", name, "--batch-size", str(batch), *common))
            for name in (FULL if asked.full else NETWORKS)
        ]
        sizes = ",".join(str(batch * factor) for factor in (1, 2, 4))
        swept = sweep("addfor", "--model", SWEPT, "--batch-sizes", sizes, *common)
    except Failed as failed:
        return int(failed.args[0])
    sys.stdout.write(f"\n{networks(found, batch, strategy)}\n{minibatches(swept)}\n{published()}\n{WHY}")
    return worst([swept, *(report for _, report in found)])


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="launch/studies/addfor", allow_abbrev=False)
    parser.add_argument("--framework", choices=("torch", "tensorflow", "mxnet"), default="torch")
    parser.add_argument("--batch-size", type=positive)
    parser.add_argument("--rounds", type=positive, default=1)
    parser.add_argument("--full", action="store_true")
    return parser.parse_args(arguments)


def networks(found: Iterable[tuple[str, Json]], batch: int, strategy: str) -> str:
    rows = [(name, *_ms(report, batch)) for name, report in found]
    return table(
        f"Milliseconds of {batch} samples, {strategy}", ("network", "forward", "forward + backward"), rows
    )


def _ms(report: Json, batch: int) -> tuple[str, ...]:
    return tuple(_cell(_one(report, batch, name)) for name in ("forward", "backward"))


def _one(report: Json, batch: int, name: str) -> Json | None:
    alike = (each for each in report["minibatches"] if (each["batch_size"], each["pass"]) == (batch, name))
    return next(alike, None)


def _cell(one: Json | None) -> str:
    if one is None:
        return "-"
    if one["failed"]:
        return "out of memory" if one["failed"]["cause"] == "oom" else f"failed: {one['failed']['cause']}"
    return number(1e3 * one["step_s"]["mean"], 1)


def minibatches(report: Json) -> str:
    batches = sorted({each["batch_size"] for each in report["minibatches"]})
    rows = [(str(batch), *_ms(report, batch), *_over(report, batch)) for batch in batches]
    heads = ("batch", "forward", "forward + backward", "x the half's", "")
    return table(f"Milliseconds by minibatch, {SWEPT}", heads, rows)


def _over(report: Json, batch: int) -> tuple[str, str]:
    one = _one(report, batch, "backward")
    if one is None or not one["over_smaller"] or 2 * one["smaller_batch_size"] != batch:
        return "-", ""
    return number(one["over_smaller"]["mean"], 2), "more than twice" if one["is_worse"] else ""


def published() -> str:
    small, large = PUBLISHED
    rows = [
        (str(small), number(PUBLISHED[small], 2), "-", ""),
        (
            str(large),
            number(PUBLISHED[large], 2),
            number(PUBLISHED[large] / PUBLISHED[small], 2),
            "more than twice",
        ),
    ]
    heads = ("batch", "forward + backward", "x the half's", "")
    return table("Published: milliseconds of VGG on a GTX 1080, TensorFlow", heads, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
