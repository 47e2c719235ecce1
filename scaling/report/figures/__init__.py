"""Figures of a report as plain data: each name of `--figure` and the function that makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from scaling.report.figures.cards import cards
from scaling.report.figures.devices import devices
from scaling.report.figures.loss import loss
from scaling.report.figures.parts import Figure
from scaling.report.figures.ranks import ranks
from scaling.report.figures.rounds import rounds
from scaling.report.figures.scaling import efficiency, speedup
from scaling.report.figures.timeline import timeline
from scaling.report.material import Material

# In reading order.
FIGURES: Mapping[str, Callable[[Material], Iterator[Figure]]] = {
    "speedup": speedup,
    "efficiency": efficiency,
    "loss": loss,
    "rounds": rounds,
    "ranks": ranks,
    "cards": cards,
    "devices": devices,
    "run": timeline,
}
