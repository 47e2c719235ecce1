"""What all formats of a report share: the records of runs, their analysis and document, computed once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from scaling import files
from scaling.analysis.measured.cell import Cell, cells
from scaling.analysis.measured.controls import Controls
from scaling.analysis.table.analyse import analyse, kept
from scaling.analysis.table.burn_in import OverTime, over_time
from scaling.analysis.table.comparisons import exchanges
from scaling.analysis.table.cost import Pricing
from scaling.analysis.table.rows import Analysis, Report, Row
from scaling.quiet import notes as quiet
from scaling.records.burn_in import PointSummary, asked_s
from scaling.records.events import Failed
from scaling.records.run import Certificate, Header, PointRecord, Prediction
from scaling.records.store import FILE, Whole, folder_of
from scaling.report import document, imported, labels, sections, verdict
from scaling.report.facts import facts
from scaling.report.labels import Context
from scaling.report.notes import Notes
from scaling.report.parts import Document
from scaling.text import counted, readable

# The page in a run's folder.
PAGE_FILE = "page.html"
CHUNK_BYTES = 1 << 20


class Place(NamedTuple):
    """Where a run is. `page`: "" if there is none; `lacks`: points can be resumed; `event`: how the run ended, if
    early; `packed`: it is an archive, with which no run can go on."""

    run: str
    page: str = ""
    lacks: bool = False
    event: str = ""
    packed: bool = False


class Source(NamedTuple):
    """A run: the name of its folder, and the digest of its file ("" if the file is gone)."""

    name: str
    sha256: str


def source_of(run: Path) -> Source:
    folder, digest = folder_of(run).resolve(), sha256()
    try:
        files.check(folder / FILE)
        with (folder / FILE).open("rb") as file:
            while data := file.read(CHUNK_BYTES):
                digest.update(data)
    except OSError:
        return Source(readable(folder.name), "")
    return Source(readable(folder.name), digest.hexdigest())


class Material:
    """The runs of one report. `joined`: lines about the differences of runs in one table. `predictions`: made
    before points were measured. `certificate`: the verdict of scaling certify. `summaries`: of all rounds of a
    burn-in."""

    def __init__(
        self,
        header: Header,
        records: Iterable[PointRecord],
        joined: Sequence[str] = (),
        sources: Sequence[Source] = (),
        pricing: Pricing | None = None,
        predictions: Sequence[Prediction] = (),
        certificate: Certificate | None = None,
        summaries: Sequence[PointSummary] = (),
    ) -> None:
        self.header = header
        self.records = kept(records)
        self.joined = joined
        self.sources = sources
        self.pricing = pricing
        self.predictions = predictions
        self._certificate = certificate
        self.summaries = summaries

    @classmethod
    def of(cls, run: Whole, sources: Sequence[Source] = ()) -> Material:
        """Return the material of a run that was read."""
        return cls(run.header, run.records, (), sources, None, run.predictions, run.certificate, run.summaries)

    @cached_property
    def analysis(self) -> Analysis:
        return analyse(self.records)

    @cached_property
    def doc(self) -> Document:
        analysis, context, header = self.analysis, self.context, self.header
        notes = Notes(quiet.briefs(cell.load for cell in cells(self.records)))
        planned = max((row.rounds_tried for row in self.rows), default=0)
        compared = tuple(document.comparisons(analysis, context, planned, notes))
        about = Report(analysis, bool(compared), bool(self.predictions), bool(self.over_time))
        of = self.certificate
        judged = [("verdict", of.result), *verdict.lines(of)] if of else []
        return Document(
            facts=(*judged, *facts(header, self.records, self.rows, context)),
            notices=tuple(self._notices()),
            comparisons=compared,
            sections=(
                *sections.over_cpu(analysis.over_cpu, context, notes),
                *sections.minibatches(analysis.minibatches, context, notes),
                *sections.trainings(analysis.trainings, context, notes),
                *document.curves(curved(analysis), context, planned, notes, analysis.rows),
                *sections.over_time(self.over_time, context, notes),
                *(sections.costs(self.rows, header, context, self.pricing, notes) if self.pricing else ()),
                *imported.sections(header, notes),
            ),
            baselines=tuple(document.baselines(analysis, context, notes, compares=bool(compared))),
            footnotes=notes.texts(),
            how_to_read=tuple(document.how_to_read(about)),
            last_line=(not self.rows and imported.last_line(header))
            or labels.last_line(self.rows, analysis.trainings, self.certificate),
        )

    def _notices(self) -> Iterator[str]:
        yield from imported.notices(self.header)
        if emulated := [row for row in self.rows if row.hardware.profile]:
            which = "; ".join(dict.fromkeys(row.hardware.label for row in emulated))
            yield (
                f"EMULATED: no device computed anything; times and {labels.rates(emulated)} are those of the "
                f"emulated cluster: {which}"
            )
        if apart := sum(bool(record.point.hosts) for record in self.records):
            yield f"{counted(apart, 'point')} of scaling bisect on some of the nodes: in no table"
        if self.predictions:
            count = counted(len(self.predictions), "point")
            yield f"PREDICTED: {count} of an older version's predictions; they are in the run's file alone"
        yield from self.joined
        if not (self.rows or self.analysis.trainings or self.header.is_import):
            yield "no exchange of this run has ended: the table is empty"

    @cached_property
    def over_time(self) -> tuple[OverTime, ...]:
        """Cells over the time of a single run of many rounds; () for others."""
        return () if self.joined else over_time(self.records, self.summaries)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows by curve, then by world size."""
        return self.analysis.rows

    @property
    def lacks(self) -> bool:
        """Whether `--resume` has something to measure: a point failed, a row has fewer rounds or a training fewer
        seeds than the others, or nothing was measured. A burn-in has it while another round fits into its time."""
        if for_s := asked_s(self.header.config):
            spent_s = max((one.end_s for one in self.summaries), default=0.0)
            rounds = max((one.first_round + one.rounds for one in self.summaries), default=0)
            return spent_s + spent_s / max(rounds, 1) <= for_s
        found = self.analysis
        failures = [row.failed for row in found.rows]
        failures += [*(one.failed for one in found.baselines), *(one.failed for one in found.trainings)]
        repetitions = {row.rounds_tried for row in found.rows}, {len(one.seeds) for one in found.trainings}
        has_failed = any(failures) or any(isinstance(record.outcome, Failed) for record in self.records)
        return not failures or has_failed or any(len(counts) > 1 for counts in repetitions)

    @cached_property
    def partly_failed(self) -> tuple[PointRecord, ...]:
        """The failed points that are no failed row: control runs, and single rounds."""
        told = {record.point.key for row in self.rows if row.failed for record in self.cell(row).records}
        failures = (record for record in self.records if isinstance(record.outcome, Failed))
        return tuple(record for record in failures if record.point.key not in told)

    @cached_property
    def context(self) -> Context:
        return labels.context(self.rows)

    def label(self, row: Row) -> str:
        """Return the name of a row, without its world size."""
        return labels.title([row], self.context)

    def cell(self, row: Row) -> Cell:
        return self.cells[self.rows.index(row)]

    @cached_property
    def cells(self) -> list[Cell]:
        """Cells in the order of the rows."""
        return exchanges(self.records)

    def together(self, row: Row) -> tuple[PointRecord, ...]:
        """Return the records of its `together` control; () if that was not measured."""
        found = self.controls.together(self.cell(row).point)
        return tuple(found.records) if found else ()

    @cached_property
    def controls(self) -> Controls:
        return Controls(self.records)

    @cached_property
    def certificate(self) -> Certificate | None:
        """The verdict, computed from the records: a file can be edited."""
        return self._certificate and verdict.checked(self._certificate, self.records, self.rows)

    @property
    def has_another_verdict(self) -> bool:
        """Whether the file says another verdict than its records."""
        return self.certificate is not None and self.certificate.result != getattr(self._certificate, "result", "")


def curved(analysis: Analysis) -> list[Row]:
    """Return the rows of curves: all but plain loops that are listed among the minibatches."""
    listed = [
        (one.contender.strategy, one.contender.options, one.workload, one.hardware) for one in analysis.minibatches
    ]
    return [
        row
        for row in analysis.rows
        if not (row.is_plain and (row.strategy, row.options, row.workload, row.hardware) in listed)
    ]
