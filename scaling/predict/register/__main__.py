"""`python -m scaling.predict.register RUN`: an answer to each question of standard input, as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import msgspec

from scaling.command import obey, show
from scaling.errors import UsageError
from scaling.predict import priors
from scaling.predict.register import answers, flags
from scaling.records.prediction import Question
from scaling.records.store import load_measured


def register(asked: flags.Asked, given: bytes) -> str:
    """The answers. Raises UsageError."""
    try:
        questions = msgspec.json.decode(given, type=tuple[Question, ...])
    except msgspec.MsgspecError as error:
        raise UsageError(f"standard input: not a JSON array of points and their nodes: {error}") from None
    header, records = load_measured(asked.run)
    found = answers.answers(header, records, questions, priors.read(), time.time())
    return msgspec.json.encode(found).decode() + "\n"


def _act(argv: Sequence[str]) -> None:
    if asked := flags.parse(argv):
        show(register(asked, sys.stdin.buffer.read()))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. Users' mistakes are one line on stderr."""
    return obey(_act, argv, flags.NAME)


if __name__ == "__main__":
    raise SystemExit(main())
