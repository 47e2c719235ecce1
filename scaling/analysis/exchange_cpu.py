"""What is known of the exchange's own CPU time: communication threads by name, the wrapper. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from scaling.analysis.breakdown import told
from scaling.analysis.cell import Cell
from scaling.analysis.cpu_time import new_threads
from scaling.analysis.rounds import Round
from scaling.analysis.stats import interval, is_distinguishable

# Less than this part of a step is not worth a name.
LEAST = 0.002


def parts(cell: Cell, measured: Sequence[Round], single: Sequence[Round]) -> dict[str, float]:
    """Fractions of the row's step: threads that plain loops do not have, the wrapper with a single rank (`single`
    are its rounds), the wrapper beside the others without any exchange; the wrapper where its 95 % interval over
    rounds tells it from nothing."""
    known = [one for one in measured if one.cpu is not None]
    if not known:
        return {}
    step_s = fmean(one.exchange_s for one in known)
    found = {name: seconds / step_s for name, seconds in _threads(known).items()}
    if cell.point.world_size > 1:
        alone = [told(one)["exchange_cpu"] * one.exchange_s for one in single if "exchange_cpu" in told(one)]
        found["wrapper at N=1"] = _beyond_noise(alone) / step_s
    found["wrapper without exchange"] = _beyond_noise(_unsynced(cell, known)) / step_s
    return {name: part for name, part in found.items() if abs(part) >= LEAST}


def _beyond_noise(by_round: Sequence[float]) -> float:
    """Their mean, where their interval leaves zero; a single round has none."""
    if not by_round:
        return 0.0
    found = interval(by_round)
    return found.mean if is_distinguishable(found) else 0.0


def _threads(measured: Sequence[Round]) -> dict[str, float]:
    """Seconds of a step by name, means over the rounds that tell what plain loops have."""
    both = [one.uses for one in measured if one.uses is not None]
    told = [new_threads(cpu.mean, plain) for cpu, plain in both if plain.threads]
    names = sorted({name for new in told for name in new})
    return {name: fmean(new.get(name, 0.0) for new in told) for name in names}


def _unsynced(cell: Cell, measured: Sequence[Round]) -> list[float]:
    """By how much a step inside the wrapper took longer than a plain one, by round."""
    return [
        cell.unsynced[one.number] - one.together_s
        for one in measured
        if one.number in cell.unsynced and one.together_s is not None
    ]
