"""`python -m scaling.predict.learn PUBLISHED`: the file of priors, learned anew."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from scaling.command import obey, show
from scaling.errors import UsageError
from scaling.predict import published
from scaling.predict.learn import fitting, flags
from scaling.predict.learn.writing import toml


def learn(asked: flags.Asked) -> str:
    """Write the file; return what is said of it."""
    tables = published.read(asked.published)
    series = published.series(tables)
    taught = [one for one in series if one.trust in ("A", "B")]
    if not taught:
        raise UsageError(f"{asked.published}: no series of trust A or B with two points and known gradients")
    priors = fitting.learn(taught)
    if wrong := [name for name, one in priors.constants.items() if not isfinite(one.mean + one.sd)]:
        raise UsageError(f"{asked.published}: {wrong[0]} cannot be learned of these series; nothing was written")
    try:
        asked.output.write_text(toml(priors, asked.published.name), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {asked.output}: {error.strerror}") from None
    sources = len({one.source for one in taught})
    said = f"{len(priors.constants)} priors from {len(taught)} series of {sources} sources"
    rest = len(tables) - len(taught)
    return f"{asked.output}: {said}{f'; {rest} taught nothing (trust C, or numbers missing)' if rest else ''}\n"


def _act(argv: Sequence[str]) -> None:
    if asked := flags.parse(argv):
        show(learn(asked))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. Users' mistakes are one line on stderr."""
    return obey(_act, argv, flags.NAME)


if __name__ == "__main__":
    raise SystemExit(main())
