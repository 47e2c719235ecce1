"""What the model lacks: a random walk of ln(efficiency) over world sizes, 0 where something is known. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scaling.predict.model import Floats
from scaling.predict.priors import Walk
from scaling.predict.setting import At


def covariance(walk: Walk, anchor: At, rows: Sequence[At], columns: Sequence[At]) -> Floats:
    """Of the walk at `rows` and `columns`, where it is 0 at `anchor`; each entry a variance of ln(efficiency).

    Doublings inside a node and doublings of nodes are walked independently, so that a point with few devices on
    each of many nodes has its place as well.
    """
    ours, theirs, start = (np.array([_place(walk, at) for at in ats]) for ats in (rows, columns, [anchor]))
    a, b = (ours - start)[:, None, :], (theirs - start)[None, :, :]
    together = np.where(a * b > 0, np.minimum(np.abs(a), np.abs(b)), 0.0)
    return np.asarray(together.sum(axis=2))


def _place(walk: Walk, at: At) -> tuple[float, float]:
    """How much variance lies between one device and here: inside nodes, and from node to node."""
    inside = walk.inside**2 * float(np.log2(at.devices_per_node))
    if at.nodes == 1:
        return inside, 0.0
    return inside, walk.leaving**2 + walk.beyond**2 * float(np.log2(at.nodes / 2))
