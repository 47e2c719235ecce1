"""What a comparison finds: a verdict for each cell. Fractions are of 1."""

from __future__ import annotations

from typing import Literal

from scaling.records.point import Hardware, Placement, Record, ServerHosts, Workload
from scaling.tools.compare.metrics import Name
from scaling.tools.compare.sides import Unit

Verdict = Literal[
    "slower", "faster", "worse", "better", "same", "cannot tell", "missing", "new", "not comparable",
    "newly failed", "newly oversubscribed", "newly mislabelled", "newly doubtful", "newly unsent", "newly unknown",
    "mended", "failed before and after",
]  # fmt: skip
# What makes the exit code 1.
LOST: tuple[Verdict, ...] = (
    "newly failed", "newly oversubscribed", "newly mislabelled", "newly doubtful", "newly unsent", "newly unknown",
    "slower", "worse",
)  # fmt: skip
# What was not told although it might have been: exit code 3 with --require-proof.
UNTOLD: tuple[Verdict, ...] = ("cannot tell", "missing", "not comparable")


class Value(Record, frozen=True, kw_only=True):
    """A side's figure: mean over `n` rounds or runs, with its own 95 % interval, None of a single one."""

    mean: float
    low: float | None
    high: float | None
    n: int


class Change(Record, frozen=True, kw_only=True):
    """New / base - 1, or new - base where figures are fractions that may be zero. The interval is of the
    `confidence` at which Holm's procedure tests this cell, so that it leaves zero where the test does; `p` is not
    adjusted. None where one side has a single round or run."""

    mean: float
    low: float | None
    high: float | None
    confidence: float | None
    p: float | None


class Cell(Record, frozen=True, kw_only=True):
    """One exchange at one world size, before and after; work, hardware, placement and flags are those of the new
    side where it has the cell.

    `reason` says why a verdict is no answer, `needed` how many rounds or runs a side would take for one.
    """

    name: str
    strategy: str
    interconnect: str
    options: dict[str, str]
    world_size: int
    workload: Workload
    hardware: Hardware
    placement: Placement
    servers: int
    server_hosts: ServerHosts
    unit: str
    verdict: Verdict
    reason: str = ""
    base: Value | None = None
    new: Value | None = None
    change: Change | None = None
    needed: int | None = None
    flags: tuple[str, ...] = ()

    @property
    def is_lost(self) -> bool:
        """Whether this cell alone makes the gate red."""
        return self.verdict in LOST


class Mean(Record, frozen=True, kw_only=True):
    """The geometric mean of new / base over the cells of one model, - 1."""

    model: str
    change: float
    cells: int


class Found(Record, frozen=True, kw_only=True):
    """A whole comparison. `fail_above` is the loss that counts, a fraction; `unit` is what is repeated."""

    metric: Name
    unit: Unit
    fail_above: float
    base: tuple[str, ...]
    new: tuple[str, ...]
    notices: tuple[str, ...]
    cells: tuple[Cell, ...]
    means: tuple[Mean, ...]

    @property
    def counts(self) -> dict[Verdict, int]:
        """Cells by verdict, those first that make the gate red."""
        order = dict.fromkeys((*LOST, *(cell.verdict for cell in self.cells)))
        counted = {verdict: sum(cell.verdict == verdict for cell in self.cells) for verdict in order}
        return {verdict: count for verdict, count in counted.items() if count}

    @property
    def is_lost(self) -> bool:
        """Whether any cell is a regression."""
        return any(cell.is_lost for cell in self.cells)

    @property
    def is_untold(self) -> bool:
        """Whether any cell that the base has is without an answer."""
        return any(cell.verdict in UNTOLD for cell in self.cells)

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all was compared, so that the gate could not have been red."""
        compared = (cell.change is not None or cell.is_lost or cell.verdict == "mended" for cell in self.cells)
        return not any(compared)
