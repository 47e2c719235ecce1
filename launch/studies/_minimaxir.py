"""Repeats Max Woolf's comparison of cloud GPUs and CPUs: relative time and cost of five networks.

Source: M. Woolf (minimaxir), "Benchmarking Modern GPUs for Maximum Cloud Cost Efficiency in Deep Learning", 2017:
Keras examples on Google Compute Engine, in TensorFlow 1.4 and CNTK 2.2. Its times are in charts only.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from launch.studies._study import RING, Failed, Json, dollars, number, positive, sweep, table, worst

# dollars per hour: GPUs with their instance, CPUs pre-emptible
PRICES = {"K80": 0.4975, "P100": 1.5075, "32 vCPUs": 0.24, "16 vCPUs": 0.12}
# Samples per epoch of the examples. Nietzsche: 600,893 characters in sequences of 40, 3 apart.
EPOCH = {
    "mnist-mlp": 60_000,
    "mnist-cnn": 60_000,
    "cifar10-cnn": 50_000,
    "imdb-lstm": 25_000,
    "nietzsche-lstm": 200_285,
}
FOUND = {
    "mnist-mlp": "CPUs come close to GPUs, and cost less",
    "mnist-cnn": "the P100 is twice as fast as the K80; the K80 costs least",
    "cifar10-cnn": "as the MLP",
    "imdb-lstm": "with cuDNN's LSTM GPUs win back; CPUs still cost less",
    "nietzsche-lstm": "as the others, without the LSTM's gap",
}
WHY = """\
What differs, and why
  device      This machine, one device and several; a K80, a P100, 32 and 16 vCPUs there. Several GPUs were "equal
              or worse" there, and left out: here each network's table says what is lost to what.
  time        Seconds of an epoch by the rate that was measured; whole trainings there.
  cost        Of the whole machine, as instances are paid, whether one device works or all.
  framework   TensorFlow as there, or --framework; CNTK is no more.
  data        Noise and made-up words in the data's shape: nothing is fetched, and rates do not depend on it.
"""


def main(arguments: list[str]) -> int:
    """Return 1 if a point failed, or the exit code of a run that did not end."""
    asked = _parse(arguments)
    found = {}
    for name in [asked.only] if asked.only else EPOCH:
        data = "synthetic-tokens" if "lstm" in name else "synthetic"
        flags = ("--model", name, "--data", data, "--strategy", RING[asked.framework])
        try:
            found[name] = sweep(
                "minimaxir", *flags, "--rounds", str(asked.rounds), "--windows", "3", ranks=asked.ranks
            )
        except Failed as failed:
            return int(failed.args[0])
    sys.stdout.write(f"\n{here(found, asked.price)}\n{there(found)}\n{WHY}")
    return worst(found.values())


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="launch/studies/minimaxir", allow_abbrev=False)
    parser.add_argument("--framework", choices=tuple(RING), default="tensorflow")
    parser.add_argument("--only", choices=tuple(EPOCH))
    parser.add_argument("--ranks", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=2)
    parser.add_argument("--price", type=dollars, default=PRICES["16 vCPUs"])
    return parser.parse_args(arguments)


def here(found: dict[str, Json], price: float) -> str:
    rows = [_line(name, row, report["rows"][0], price) for name, report in found.items() for row in report["rows"]]
    heads = ("network", "devices", "samples/s", "s an epoch", "x one's time", "dollars", "lost most to")
    return table(f"An epoch on this machine, at {price:g} dollars an hour", heads, rows)


def _line(name: str, row: Json, base: Json, price: float) -> tuple[str, ...]:
    rate, alone = _rate(row), _rate(base)
    if rate is None:
        return name, str(row["world_size"]), "failed", "-", "-", "-", ""
    seconds = EPOCH[name] / rate
    relative = alone / rate if alone else None
    dollars = seconds * price / 3600
    return (
        name, str(row["world_size"]), number(rate, 0), number(seconds, 1), number(relative, 2),
        number(dollars, 4), _cause(row) if row["world_size"] > 1 else "",
    )  # fmt: skip


def _rate(row: Json) -> float | None:
    return row["samples_per_s"]["mean"] if row["samples_per_s"] else None


def _cause(row: Json) -> str:
    causes: dict[str, Any] = {name: value for name, value in (row["breakdown"] or {}).items() if value}
    name = max(causes, key=causes.__getitem__, default="")
    said = "rest" if name == "unexplained" else name.replace("_", " ")
    return f"{said} {100 * causes[name]:.0f} %" if name and causes[name] > 0 else "-"


def there(found: dict[str, Json]) -> str:
    prices = ", ".join(f"{name} {price:g}" for name, price in PRICES.items())
    title = f"Published: dollars an hour {prices}; the base is the K80 with TensorFlow"
    return table(title, ("network", "found"), [(name, FOUND[name]) for name in found])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
