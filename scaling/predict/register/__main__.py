"""`python -m scaling.predict.register RUN`: an answer to each question of standard input, as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import msgspec

from scaling.command import complain, open_streams, show
from scaling.errors import Interrupted, ScalingError, UsageError
from scaling.predict import priors
from scaling.predict.register import answers, flags
from scaling.records.prediction import Question
from scaling.records.store import load


def register(asked: flags.Asked, given: bytes) -> str:
    """The answers. Raises UsageError."""
    try:
        questions = msgspec.json.decode(given, type=tuple[Question, ...])
    except msgspec.MsgspecError as error:
        raise UsageError(f"standard input: not a JSON array of points and their nodes: {error}") from None
    header, records = load(asked.run)
    found = answers.answers(header, records, questions, priors.read(), time.time())
    return msgspec.json.encode(found).decode() + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. Users' mistakes are one line on stderr."""
    open_streams()
    try:
        asked = flags.parse(sys.argv[1:] if argv is None else argv)
        if asked is not None:
            show(register(asked, sys.stdin.buffer.read()))
        return 0
    except ScalingError as error:
        complain(error, flags.NAME)
        return error.exit_code
    except Interrupted as stop:
        return stop.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
