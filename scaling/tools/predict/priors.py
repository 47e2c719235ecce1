"""Reads the file of priors: what is believed of clusters before measurements.

Each entry is a normal distribution of the logarithm of a constant; of the logit for `hide`, of the value for
`wire` and exponents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path

import msgspec

from scaling import files
from scaling.errors import UsageError
from scaling.records.point import Record

FILE = Path(__file__).with_name("priors.toml")

# of a logarithm: e^100 is not a rate
WIDEST_SD = 100.0
# every constant that a setting may have (model.py, `keys`)
NAMES = (
    "network.tcp10.ring", "network.tcp10.servers", "network.tcp.ring", "network.tcp.servers",
    "network.ipoib", "network.cpu", "network.rdma", "network.rdma_several", "network.unknown", "cap_growth",
    "bus.pcie", "bus.nvlink", "bus.nvswitch", "bus.host", "bus.loopback", "bus.unknown",
    "fade.tcp", "fade.rdma", "alpha.tcp", "alpha.rdma",
    "hide.ddp", "hide.horovod", "hide.other", "hide.mwms", "hide.serial",
    "window", "tax", "tax.sharded", "tax_devices", "tax_nodes", "tax_s", "jitter", "growth", "wire",
    "network.emulated", "fade.emulated", "alpha.emulated", "hide.emulated", "tax.emulated", "straggling.emulated",
)  # fmt: skip


class Prior(Record, frozen=True, kw_only=True):
    """A constant: `mean` and `sd` on the scale on which it is normal, the rest for readers."""

    mean: float
    sd: float
    value: float = 0.0
    factor: float = 0.0
    unit: str = ""
    series: int = 0
    publishers: tuple[str, ...] = ()
    before: str = ""


class Walk(Record, frozen=True, kw_only=True):
    """The model's error, a random walk of ln(efficiency) over log2 N. Steps are standard deviations.

    * inside, beyond: per doubling inside a node, of nodes
    * leaving: from one node to several
    * freedom: of Student's t
    """

    inside: float
    leaving: float
    beyond: float
    freedom: float = 5.0


class Priors(Record, frozen=True, kw_only=True):
    walk: Walk
    constants: Mapping[str, Prior]


def read(path: Path = FILE) -> Priors:
    """Read a file of priors. Raises UsageError with the faulty entry."""
    try:
        priors = msgspec.toml.decode(files.read(path), type=Priors)
    except OSError as error:
        raise UsageError(f"--priors {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--priors {path}: {error}; python -m scaling predict learn writes such a file") from None
    if fault := next(_faults(priors), ""):
        raise UsageError(f"--priors {path}: {fault}")
    return priors


def _faults(priors: Priors) -> Iterator[str]:
    for name in NAMES:
        if name not in priors.constants:
            yield f"{name} is missing; python -m scaling predict learn writes them all"
    for name, prior in priors.constants.items():
        if not (0 <= prior.sd <= WIDEST_SD and abs(prior.mean) <= WIDEST_SD):
            yield f"{name}: sd must be 0 to {WIDEST_SD:g}, mean within ± {WIDEST_SD:g}"
    walk = priors.walk
    if not all(0 <= step <= 1 for step in (walk.inside, walk.leaving, walk.beyond)):
        yield "walk: inside, leaving and beyond must be 0 to 1"
    if not 1 <= walk.freedom < inf:
        yield "walk: freedom must be 1 or more, and finite"
