"""Forecasts that were committed before the rates of their series were entered: tests/published-frozen.json.

python -m tests.bench.frozen              errors and coverage of the forecasts whose rates are in
python -m tests.bench.frozen --freeze     add forecasts from the rates that are in; never changes an older one

`from_1` of an asked world size is the efficiency relative to the first point, with its 80 % interval, predicted
from the first point alone; `from_2` from the first two. `seen`: its rates were seen while the series was found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scaling.tools.predict.__main__ import WIDEST
from scaling.tools.predict.model import fit, predict
from scaling.tools.predict.setting import At, read
from tests.bench import published
from tests.support.scripted_clusters import measured_at

FILE = Path(__file__).resolve().parents[1] / "published-frozen.json"
MOST_KNOWN = 2


class Forecast(NamedTuple):
    """Efficiencies relative to the first point of the series."""

    name: str
    publisher: str
    known: int
    gpus: int
    told: float
    low: float
    high: float
    measured: float
    seen: bool
    is_claimed: bool

    @property
    def error(self) -> float:
        return 100 * abs(self.told - self.measured)

    @property
    def is_inside(self) -> bool:
        return self.low <= self.measured <= self.high


def _place(point: dict[str, Any]) -> At:
    return At(world_size=point["gpus"], nodes=point["nodes"], accumulation=point.get("accum", 1))


def _rates(one: dict[str, Any]) -> dict[At, float]:
    return {_place(point): point["throughput"] / point["gpus"] for point in one["points"]}


def freeze(one: dict[str, Any]) -> None:
    rates = _rates(one)
    first, name = next(iter(rates.values())), f"from_{len(rates)}"
    places = [point | {"throughput": 1.0} for point in one["asked"]]
    whole = msgspec.convert(one | {"points": [one["points"][0], *places]}, published.Published)
    observed = tuple(measured_at(at, rate / first) for at, rate in [*rates.items()][1:])
    found = fit(published.setting(whole, whole.points[0]), observed, read())
    for point in one["asked"] if len(rates) <= MOST_KNOWN else ():
        if _place(point) not in rates and name not in point:
            point[name] = [round(one, 4) for one in predict(found, _place(point))[:3]]


def forecasts(plain: Sequence[dict[str, Any]]) -> Iterator[Forecast]:
    for one in plain:
        rates = _rates(one)
        first = next(iter(rates.values()))
        source = msgspec.convert(one, published.Published)
        for point in one["asked"]:
            for known in range(1, MOST_KNOWN + 1):
                if f"from_{known}" in point and _place(point) in rates:
                    measured = rates[_place(point)] / first
                    told, low, high = point[f"from_{known}"]
                    whose = published.publisher(source.source)
                    # as the command: neither wide intervals nor several nodes without a network
                    claimed = (high - low) / 2 <= WIDEST and bool(one["network"] or point["nodes"] == 1)
                    yield Forecast(
                        one["id"], whose, known, point["gpus"], told, low, high, measured, one["seen"], claimed
                    )


def summary(found: Sequence[Forecast]) -> str:
    lines = []
    for known in range(1, MOST_KNOWN + 1):
        every = [one for one in found if one.known == known]
        for what, ours in (
            ("all", every),
            ("claimed", [one for one in every if one.is_claimed]),
            ("claimed, rates not seen", [one for one in every if one.is_claimed and not one.seen]),
        ):
            if ours:
                names = sorted({one.publisher for one in ours})
                by = [np.mean([one.is_inside for one in ours if one.publisher == name]) for name in names]
                middle, ninth = np.quantile([one.error for one in ours], [0.5, 0.9])
                inside = 100 * float(np.mean([one.is_inside for one in ours]))
                lines.append(
                    f"from {known}, {what}: {len(ours)} points of {len({one.name for one in ours})} series of "
                    f"{len(names)} publishers, off by {middle:.1f} / {ninth:.1f}, 80 % covers {inside:.0f} %, by "
                    f"publisher {100 * float(np.mean(by)):.0f} %"
                )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    plain = json.loads(FILE.read_text(encoding="utf-8"))
    if argv == ["--freeze"]:
        for one in plain:
            freeze(one)
        rows = ",\n".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in plain)
        FILE.write_text(f"[\n{rows}\n]\n", encoding="utf-8")
        return 0
    found = list(forecasts(plain))
    for one in found:
        mark = "" if one.is_inside else "  outside"
        print(
            f"{one.name:24} from {one.known} N={one.gpus:<4} predicted {100 * one.told:5.1f} "
            f"[{100 * one.low:.0f}-{100 * one.high:.0f}], measured {100 * one.measured:5.1f}{mark}"
        )
    print(summary(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
