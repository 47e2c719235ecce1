"""All that a report is made of: a run's records, what they say, their digest. Analysed once for all formats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from scaling import files
from scaling.analysis.measured.cell import Cell
from scaling.analysis.measured.controls import Controls
from scaling.analysis.table.analyse import Analysis, analyse, kept
from scaling.analysis.table.comparisons import exchanges
from scaling.analysis.table.cost import Pricing
from scaling.analysis.table.predictions import Judged, judged
from scaling.analysis.table.rows import Row
from scaling.records.run import Header, PointRecord, Prediction
from scaling.records.store import FILE, folder_of
from scaling.report import labels
from scaling.report.document import said
from scaling.report.labels import Context
from scaling.report.parts import Document
from scaling.text import readable


class Source(NamedTuple):
    """A run: its folder's name, without the way there, and the digest of its file ("" where it is gone)."""

    name: str
    sha256: str


def source_of(run: Path) -> Source:
    """Of a run's folder or file."""
    folder = folder_of(run).resolve()
    try:
        digest = sha256(files.read(folder / FILE)).hexdigest()
    except OSError:
        digest = ""
    return Source(readable(folder.name), digest)


class Material:
    """The runs of one report; `joined` says how several in one table differ, `pricing` what they cost,
    `predictions` what was said of points before they were measured."""

    def __init__(
        self,
        header: Header,
        records: Iterable[PointRecord],
        joined: Sequence[str] = (),
        sources: Sequence[Source] = (),
        pricing: Pricing | None = None,
        predictions: Sequence[Prediction] = (),
    ) -> None:
        self.header = header
        self.records = kept(records)
        self.joined = joined
        self.sources = sources
        self.pricing = pricing
        self.predictions = predictions

    @cached_property
    def analysis(self) -> Analysis:
        """What the records say."""
        return analyse(self.records)

    @cached_property
    def doc(self) -> Document:
        """What people read."""
        return said(self.header, self.records, self.analysis, self.joined, self.pricing, self.predictions)

    @cached_property
    def judged(self) -> tuple[Judged, ...]:
        """What was predicted, beside what was measured."""
        return judged(self.predictions, self.rows)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Curve by curve, and inside each by world size."""
        return self.analysis.rows

    @cached_property
    def context(self) -> Context:
        """What names of rows leave out."""
        return labels.context(self.rows)

    def label(self, row: Row) -> str:
        """What a row is called beside all others, without its world size."""
        return labels.title([row], self.context)

    def cell(self, row: Row) -> Cell:
        """The records behind a row."""
        return self.cells[self.rows.index(row)]

    @cached_property
    def cells(self) -> list[Cell]:
        """In the order of the rows."""
        return exchanges(self.records)

    def together(self, row: Row) -> tuple[PointRecord, ...]:
        """The plain loops of all its devices at once, round by round; nothing where they were not measured."""
        found = self._controls.together(self.cell(row).point)
        return tuple(found.records) if found else ()

    @cached_property
    def _controls(self) -> Controls:
        return Controls(self.records)
