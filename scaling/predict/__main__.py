"""`python -m scaling.predict RUN`: what world sizes that nobody measured would do, from a run's file or cold."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.command import deliver, obey
from scaling.predict import asking, flags, healthy, planner, preflight, priors, words
from scaling.predict.flags import NAME, Asked
from scaling.predict.forecast import forecasts, measure_next
from scaling.records.store import load_measured


def predict(asked: Asked) -> str:
    """What is to be printed."""
    run = None if asked.run is None else load_measured(asked.run)
    case = asking.case_of(asked, run)
    if asked.check is not None:
        case = preflight.added(case, preflight.read(asked.check), run[0].networks if run else ())
    believed = priors.read(asked.priors)
    if asked.target is not None and asked.prices is not None:
        return planner.planned(asked, case, believed)
    relief = None
    if run is not None and asked.without:
        relief, case = healthy.without(asked.without, case, run[1])
    look = asking.look(asked, case, believed)
    sizes = asking.world_sizes(asked, case, relief)
    rows = forecasts(look, sizes)
    following = measure_next(look, sizes[-1])
    write = words.json if asked.format == "json" else words.table
    return write(case, rows, (*look.doubts, *asking.supposed(asked, case, relief)), following)


def _act(argv: Sequence[str]) -> None:
    if asked := flags.parse(argv):
        deliver(predict(asked), asked.output)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. Users' mistakes are one line on stderr."""
    return obey(_act, argv, NAME)


if __name__ == "__main__":
    raise SystemExit(main())
