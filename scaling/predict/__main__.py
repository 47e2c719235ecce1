"""`python -m scaling.predict RUN`: what world sizes that nobody measured would do, from a run's file or cold."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from scaling.command import complain, deliver, open_streams
from scaling.errors import Interrupted, ScalingError
from scaling.predict import asking, flags, healthy, planner, preflight, priors, words
from scaling.predict.flags import NAME, Asked
from scaling.predict.forecast import forecasts, measure_next, relieved
from scaling.records.store import load


def predict(asked: Asked) -> str:
    """What is to be printed."""
    run = None if asked.run is None else load(asked.run)
    case = asking.case_of(asked, run)
    if asked.check is not None:
        case = preflight.added(case, preflight.read(asked.check), run[0].networks if run else ())
    believed = priors.read(asked.priors)
    if asked.target is not None and asked.prices is not None:
        return planner.planned(asked, case, believed)
    look = asking.look(asked, case, believed)
    relief = None if run is None or not asked.without else healthy.without(asked.without, case, run[1])
    sizes = asking.world_sizes(asked, case, relief)
    rows = tuple(relieved(row, relief) for row in forecasts(look, sizes))
    following = measure_next(look, sizes[-1])
    write = words.json if asked.format == "json" else words.table
    return write(case, rows, asking.supposed(asked, case, relief), following)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. Users' mistakes are one line on stderr."""
    open_streams()
    try:
        asked = flags.parse(sys.argv[1:] if argv is None else argv)
        if asked is not None:
            deliver(predict(asked), asked.output)
        return 0
    except ScalingError as error:
        complain(error, NAME)
        return error.exit_code
    except Interrupted as stop:
        return stop.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
