"""What a search says, in lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from scaling.analysis.stats import Estimate
from scaling.text import counted
from scaling.tools.bisect.belief import searched
from scaling.tools.bisect.promising import Promise
from scaling.tools.bisect.proof import Proof
from scaling.tools.bisect.search import Found
from scaling.tools.bisect.suspects import Suspect


def opening(nodes: Sequence[str]) -> str:
    """What is searched."""
    return f"a slow node among {len(nodes)}: {', '.join(nodes)}"


def evidence(suspects: Iterable[Suspect]) -> Iterator[str]:
    """Whom something points at."""
    lines = [f"suspect {one.node}: {one.why}" for one in suspects]
    return iter(lines or ["nothing points at any node: ranks beside each other are alike, and so are paths"])


def limits(noise: float) -> str:
    """What is not searched."""
    return (
        f"noise {100 * noise:.1f} %: differences under twice that are not searched, nodes less than "
        f"{100 * searched(noise):.1f} % slower"
    )


def wave(number: int, groups: Iterable[Iterable[str]]) -> str:
    """What is measured at once."""
    return f"wave {number}: {' | '.join(' '.join(sorted(group)) for group in groups)}"


def unsteady(number: int) -> str:
    """Why the same groups follow in the next wave."""
    return f"wave {number} never became steady: its groups are measured again"


def outcome(found: Found, slow: Sequence[str], doubted: Sequence[str], points: int, waves: int) -> str:
    """How the search ended."""
    by = f"by {counted(points, 'point')} in {counted(waves, 'wave')}"
    left = f"; not settled: {', '.join(doubted)}" if doubted else ""
    if slow:
        return f"slow: {', '.join(slow)} ({100 * found.probability:.0f} % that it is exactly these), {by}{left}"
    if doubted:
        return f"no node is slow beyond doubt, {by}{left}: start it again, or with more --windows"
    return f"no slow node ({100 * found.probability:.0f} % sure), {by}"


def broken_off(slow: Sequence[str]) -> str:
    """The last word of a search that a signal ended."""
    before = f"the proof of {', '.join(slow)} was whole" if slow else "a node could be blamed"
    return f"broken off before {before}: what was measured is kept; start it again"


def promised(found: Promise | None, slow: Sequence[str]) -> str:
    """Before the proof."""
    if found is None:
        return "no promise: what it rests on was not measured"
    between = f"80 %: {100 * found.low:.0f} to {100 * found.high:.0f}"
    return f"PREDICTED without {', '.join(slow)}: efficiency {100 * found.efficiency:.1f} % ({between})"


def proved(found: Proof, slow: Sequence[str], control: Sequence[str], promise: Promise | None) -> Iterator[str]:
    """What leaving nodes out brought: `81.2 -> 94.0 % (+12.8 ± 2.1) without node03; without node05: 81.5 %`."""
    yield (
        f"{100 * found.everyone:.1f} -> {100 * found.without:.1f} % ({points(found.gain)}) without "
        f"{', '.join(slow)}; without {', '.join(control)}: {100 * found.control:.1f} %"
    )
    if promise is not None:
        where = "inside" if promise.low <= found.without <= promise.high else "outside"
        off = 100 * (found.without - promise.efficiency)
        yield f"of the promise {off:+.1f} points are unexplained, {where} its 80 % interval"
    if found.gain.low is None:
        yield "one round: no interval; --rounds 3 or more give one"
    elif found.gain.high is not None and found.gain.high < 0:
        yield f"refuted: without {', '.join(slow)} the others do worse"
    elif found.gain.low <= 0:
        yield "not proved: the interval holds zero; more --rounds narrow it"
    elif found.of_control.low is not None and found.of_control.low > 0:
        yield f"the control gains too ({points(found.of_control)}): part of it is that nodes are fewer"


def points(found: Estimate) -> str:
    """A difference of efficiencies: `+12.8 ± 2.1`."""
    width = "" if found.half_width is None else f" ± {100 * found.half_width:.1f}"
    return f"{100 * found.mean:+.1f}{width}"
