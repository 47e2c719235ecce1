"""The predict command, `python -m scaling predict RUN`, and its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from scaling.command import deliver, obey
from scaling.records.store import load
from scaling.text import as_json, printable, rounded
from scaling.tools.predict import asking, flags, healthy, planner, preflight
from scaling.tools.predict.fit import line_note
from scaling.tools.predict.flags import NAME, Asked
from scaling.tools.predict.forecast import Case, Forecast, Measured, Next, doubts, forecasts, measure_next

HEAD = ("N", "nodes", "", "/s", "efficiency", "interval", "contention", "straggling", "exposed", "rest", "largest")
CHECKED = (
    "interval: PREDICTED 80 %, of one run on a healthy cluster, tested on published ones: "
    "scaling/tools/predict/README.md"
)
OVER_ROUNDS = "; measured 95 %, over rounds"


def prediction_table(case: Case, rows: Sequence[Forecast], extra: Sequence[str], following: Next | None) -> str:
    lines = [f"PREDICTED, not measured: {case.title}"]
    lines += [f"note: {text}" for text in (*case.notes, *extra)]
    head = tuple(f"{case.unit}/s" if word == "/s" else word for word in HEAD)
    cells = [head, *(_measured(one, case) for one in case.measured), *(_predicted(row, case) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    lines += [_line(line, widths) for line in cells]
    lines += sorted({f"not claimed: {row.unclaimed}" for row in rows if not row.claimed})
    if by_priors := ", ".join(f"{row.at.world_size:,}" for row in rows if row.by_priors):
        lines.append(f"N={by_priors}: published clusters alone say this; the measured points weigh too little")
    if following is not None:
        lines.append(
            f"measure next: {following.what} (the interval at {following.asked:,} would be "
            f"± {100 * following.then:.1f} instead of ± {100 * following.now:.1f})"
        )
    lines.append("losses are per cent of a step; PREDICTED rows are never ranked against measured ones")
    lines.append(CHECKED + OVER_ROUNDS * any(one.low is not None for one in case.measured))
    return "\n".join(map(printable, lines)) + "\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    sides = ["<" if column in (2, len(HEAD) - 1) else ">" for column in range(len(HEAD))]
    placed = (f"{word:{side}{width}}" for word, side, width in zip(cells, sides, widths, strict=True))
    return "  ".join(placed).rstrip()


def _measured(one: Measured, case: Case) -> tuple[str, ...]:
    rate, efficiency = f"{one.samples_per_s * case.units_per_sample:,.0f}", f"{100 * one.efficiency:.1f} %"
    between = "" if one.low is None or one.high is None else f"{100 * one.low:.0f} to {100 * one.high:.0f}"
    return (f"{one.at.world_size:,}", f"{one.at.nodes:,}", "measured", rate, efficiency, between, *[""] * 5)


def _predicted(row: Forecast, case: Case) -> tuple[str, ...]:
    where = (f"{row.at.world_size:,}", f"{row.at.nodes:,}", "PREDICTED")
    between = f"{100 * row.low:.0f} to {100 * row.high:.0f}"
    if not row.claimed:
        return (*where, "not claimed", "not claimed", between, *[""] * 5)
    return (
        *where,
        f"{row.samples_per_s * case.units_per_sample:,.0f}",
        f"{100 * row.efficiency:.1f} %",
        between,
        *(
            f"{round(100 * part, 1) + 0.0:.1f}"
            for part in (row.contention, row.straggling, row.exposed, row.unexplained)
        ),
        row.cause,
    )


def prediction_json(case: Case, rows: Sequence[Forecast], extra: Sequence[str], following: Next | None) -> str:
    """Render the prediction as JSON; fractions are of 1."""
    plain: dict[str, Any] = {
        "kind": "PREDICTED",
        "interval_percent": 80,
        "measured_interval_percent": 95,
        "title": case.title,
        "notes": [*case.notes, *extra],
        "unit": case.unit,
        "units_per_sample": case.units_per_sample,
        "measured": msgspec.to_builtins(case.measured),
        "predicted": [msgspec.to_builtins(row) | {"kind": "PREDICTED", "cause": row.cause} for row in rows],
        "measure_next": following._asdict() if following else None,
    }
    return as_json(rounded(plain))


def predict(asked: Asked) -> str:
    run = None if asked.run is None else load(asked.run)
    case = asking.case_of(asked, run)
    if asked.check is not None:
        case = preflight.added(case, preflight.read(asked.check), run[0].networks if run else ())
    if asked.target is not None:
        return planner.planned(asked, case)
    relief = None
    if run is not None and asked.without:
        relief, case = healthy.without(asked.without, case, run[1])
    look = asking.look(asked, case)
    sizes = asking.world_sizes(asked, case, relief)
    rows = forecasts(look, sizes)
    write = prediction_json if asked.format == "json" else prediction_table
    noted = line_note(look.fit) if asked.network else ()
    extra = (*doubts(case), *asking.supposed(asked, case, relief), *noted)
    return write(case, rows, extra, measure_next(look, sizes[-1]))


def _act(argv: Sequence[str]) -> None:
    if asked := flags.parse(argv):
        deliver(predict(asked), asked.output)


def main(argv: Sequence[str] | None = None) -> int:
    return obey(_act, argv, NAME)


if __name__ == "__main__":
    raise SystemExit(main())
