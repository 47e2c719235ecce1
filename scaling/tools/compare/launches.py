"""How launches of one code differ: learnt from several runs, else assumed.

Rounds of one launch do not show it: memory is placed anew, ranks meet other neighbours. With fewer than three runs
a side the variance of a change has this part:

    learnt    runs of one code and work have the variance w between them, rounds included. A change between k
              and l launches has w (1/k + 1/l). Cells of one work on as many devices share it
    assumed   else ASSUMED_SD. It is a premise, not an estimate, so it has no degrees of freedom of its own: only
              the rounds' part has (Satterthwaite)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import islice
from math import fsum, inf, sqrt
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

from scaling import files
from scaling.analysis.statistics.intervals import MOST_UNITS, Difference, quantile, variance
from scaling.analysis.table.analyse import EXPECTED, differing, rows
from scaling.analysis.table.rows import Row
from scaling.errors import UsageError
from scaling.records.run import Header, PointRecord
from scaling.records.store import FILE, is_being_written, load
from scaling.tools.compare.found import ENOUGH_RUNS, Side

# Standard deviation of a cell's logarithm between launches, as a fraction. Of a difference in points: in points.
ASSUMED_SD = 0.005
# A variance with fewer degrees of freedom only widens the assumed one: its own quantiles are too wide to decide.
LEAST_DF = 8
# Fewer runs of a code, the base with its history, show nothing: one odd run would hide a loss.
LEAST_OLDER = 5
# The newest runs of a history that are used, and read.
MOST_RUNS, MOST_READ = 20, 100
# So many cells on each side of zero show whether cells scatter more than assumed.
LEAST_A_SIDE = 8
# Median of chi-squared with one degree of freedom.
CHI2_MEDIAN = 0.4549
# The share of cases in which a loss of the stated size is found.
POWER = 0.8
# More degrees of freedom change nothing, and scipy's noncentral t does not take an infinity.
MOST_DF = 1e5

# ---------------------------------------------------------------- older runs


Cell = TypeVar("Cell", bound=Hashable)
Run = tuple[Header, tuple[PointRecord, ...]]
# runs of one code, each as its rows
Group = tuple[tuple[Row, ...], ...]


def groups(base: Side, new: Side, history: Path | None) -> tuple[Group, ...]:
    """Return runs of the same code: the base with its history, and the new side. `history` is a folder of runs; by
    default that of the base, with its runs up to the base's newest. Raises UsageError if `history` is no folder.
    """
    by_code: dict[str, list[Sequence[PointRecord]]] = defaultdict(list)
    for header, records in (*zip(base.headers, base.records, strict=True), *_history(base, new, history)):
        by_code[header.code].append(records)
    older = [runs for runs in by_code.values() if len(runs) >= LEAST_OLDER]
    own = [base.records] if len(by_code[base.headers[0].code]) < LEAST_OLDER else []
    found: list[Sequence[Sequence[PointRecord]]] = [*older, *own, new.records]
    return tuple(tuple(rows(records) for records in runs) for runs in found if len(runs) > 1)


def _history(base: Side, new: Side, asked: Path | None) -> list[Run]:
    taken = {folder.resolve() for folder in (*base.folders, *new.folders)}
    folder = base.folders[0].resolve().parent if asked is None else asked
    last_s = max(header.created_unix_s for header in base.headers) if asked is None else inf
    try:
        runs = [one for one in folder.iterdir() if one.resolve() not in taken and files.is_file(one / FILE)]
    except OSError as error:
        if asked is None:
            return []
        raise UsageError(f"--history {asked}: {error.strerror}; give a folder with runs") from None
    newest = sorted(runs, reverse=True)[:MOST_READ]  # their names begin with the date
    return list(islice(filter(None, (_alike(run, base, last_s) for run in newest)), MOST_RUNS))


def _alike(run: Path, base: Side, last_s: float) -> Run | None:
    """Read a run; None if it is no finished run that is comparable with the base, or is newer."""
    try:
        header, records = load(run)
    except UsageError:
        return None
    if header.is_import or is_being_written(run) or header.created_unix_s > last_s:
        return None
    return (header, records) if differing((base.headers[0], header)).keys() <= EXPECTED else None


# ---------------------------------------------------------------- variances


class Between(NamedTuple):
    """The variance of a cell's value between launches, and its degrees of freedom."""

    variance: float
    df: int


def between(
    found: Mapping[Cell, Sequence[Sequence[float]]], alike: Callable[[Cell], Hashable]
) -> dict[Cell, Between]:
    """Return the variance of each cell, from the values of its runs by group. Cells that are `alike` share the
    mean variance; noisier ones keep their own."""
    known, kin = {}, defaultdict(list)
    for key, of in found.items():
        one = _joined([Between(variance(values), len(values) - 1) for values in of if len(values) > 1])
        if one.df:
            known[key] = one
            kin[alike(key)].append(one)
    shared = {kind: _joined(of) for kind, of in kin.items()}
    return {key: max(shared[alike(key)], one, key=lambda of: of.variance) for key, one in known.items()}


def _joined(parts: Sequence[Between]) -> Between:
    df = sum(one.df for one in parts)
    return Between(fsum(one.df * one.variance for one in parts) / df if df else 0.0, df)


class Wide(NamedTuple):
    """A difference between rounds that contains how launches differ, and the standard deviation of launches."""

    difference: Difference
    launch_sd: float
    is_assumed: bool

    @property
    def se(self) -> float:
        return self.difference.se or 0.0


def widened(found: Difference, runs: tuple[int, int], learnt: Between | None) -> Wide:
    """Add how launches differ to the difference between rounds of `runs` launches a side."""
    share = sum(1 / count for count in runs)
    own, more = (found.se or 0.0) ** 2, share * ASSUMED_SD**2
    df = found.df * ((own + more) / own) ** 2 if own else inf
    assumed = Wide(found._replace(se=sqrt(own + more), df=df), ASSUMED_SD, is_assumed=True)
    if learnt is None:
        return assumed
    sd = sqrt(learnt.variance)
    known = Wide(found._replace(se=sqrt(share) * sd, df=float(learnt.df)), sd, is_assumed=False)
    if learnt.df < LEAST_DF:
        return max(assumed, known, key=lambda wide: wide.se)
    return max(known, Wide(found, sd, is_assumed=False), key=lambda wide: wide.se)


def scattered(found: Mapping[int, Wide], runs: tuple[int, int]) -> dict[int, Wide]:
    """Widen the assumed ones if many cells scatter more than that, on both sides of zero.

    A change for the worse or for the better leaves cells without it on the other side. The ratio of medians is
    the genomic control of Devlin and Roeder (Biometrics 55, 1999).
    """
    means = [(one.difference.mean, one.se) for one in found.values() if one.is_assumed and one.se]
    sides = [[(mean / se) ** 2 for mean, se in means if mean * sign > 0] for sign in (1, -1)]
    if min(map(len, sides)) < LEAST_A_SIDE:
        return dict(found)
    factor = max(1.0, min(map(median, sides)) / CHI2_MEDIAN)
    wider = dict(found)
    for at, one in found.items():
        if one.is_assumed:
            more = (factor - 1) * one.se**2 / sum(1 / count for count in runs)
            difference = one.difference._replace(se=sqrt(factor) * one.se)
            wider[at] = Wide(difference, sqrt(one.launch_sd**2 + more), is_assumed=True)
    return wider


# ---------------------------------------------------------------- power


def detected(found: Difference, level: float, bound: float) -> float:
    """Return the loss that is found in POWER of cases by a test at this level, if a loss counts above `bound`. By
    the noncentral t, because another comparison estimates another standard error."""
    from scipy.special import nctdtrinc  # type: ignore[import-untyped]  # slow to import

    df, se = min(found.df, MOST_DF), found.se or 0.0
    significant = float(nctdtrinc(df, 1 - POWER, quantile(df, 1 - level))) * se
    return max(significant, bound + quantile(df, 2 * POWER - 1) * se)


def launches_needed(found: Difference, level: float, half: float, runs: int) -> int | None:
    """Return the launches a side until half of the interval is below `half`, judged by runs; None if over
    MOST_UNITS."""
    if half <= 0 or found.se is None:
        return None
    for n in range(max(runs + 1, ENOUGH_RUNS), MOST_UNITS + 1):
        if quantile(2 * (n - 1), 1 - level) * found.se * sqrt(runs / n) < half:
            return n
    return None
