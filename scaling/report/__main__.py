"""`python -m scaling report RUN...`: the report of finished, running or interrupted runs, from their files."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from scaling.analysis.table import cost
from scaling.analysis.table.analyse import join, joinable
from scaling.analysis.table.cost import Base, Pricing, base, why_not
from scaling.command import complain, deliver, has_color, obey, terminal_width
from scaling.errors import UsageError
from scaling.records.store import folder_of, read
from scaling.report import archive, flags, labels, reference, signature
from scaling.report.anonymous import Disguise, hosts_of
from scaling.report.archive import is_archive, unpacked
from scaling.report.flags import FOR_FILES, NAME, Asked
from scaling.report.formats import csv, json, latex, markdown, openmetrics, screen, terminal
from scaling.report.material import PAGE_FILE, Material, Place, source_of
from scaling.text import one_line, readable

# ---------------------------------------------------------------- the row of --base


_NAMED = re.compile(r"^(?P<name>.*\S)\s+N\s*=\s*(?P<world_size>\d+)$")


def bases_found(text: str, material: Material) -> Base:
    """Return the row of this name and world size, as a base. Raises UsageError with the names of candidates if
    there is no such row, or several."""
    named = {id(row): f"{one_line(material.label(row))} N={row.world_size}" for row in material.rows}
    asked = _NAMED.match(text.strip())
    rows = [
        row
        for row in material.rows
        if asked and row.world_size == int(asked["world_size"])
        if asked["name"] in (material.label(row), labels.name(row, material.context), row.strategy)
    ]
    if len(rows) != 1:
        said = "several rows have this name" if rows else "no such row"
        candidates = "; ".join(named[id(row)] for row in rows or material.rows) or "none"
        raise UsageError(f"--base {one_line(text)}: {said}; give one of: {candidates}")
    if why := why_not(rows[0]):
        raise UsageError(f"--base {one_line(text)}: costs cannot be relative to it: {why}")
    return base(named[id(rows[0])], rows[0], material.rows, material.cells)


# ---------------------------------------------------------------- main


def joined(paths: Sequence[Path], *, although_different: bool) -> Material:
    """Join runs: the first header with the hosts of all, all records, and lines about the differences.

    Raises UsageError if runs differ without --join, or a run is given twice; StoreError or UsageError if a run
    cannot be read.
    """
    if len({folder_of(path).resolve() for path in paths}) < len(paths):
        raise UsageError("RUN: the same run is given twice")
    runs = [read(path) for path in paths]
    headers = [run.header for run in runs]
    # Imports have sections of their own, so they need not be alike.
    ours = [header for header in headers if not header.is_import] or headers[:1]
    reasons = joinable(ours)
    if reasons and not although_different:
        raise UsageError(f"these runs differ: {'; '.join(reasons)}; add --join to put them into one table anyway")
    names = [readable(folder_of(path).resolve().name) for path in paths]
    several: tuple[str, ...] = ()
    told = [one for run in runs for one in run.predictions]
    if len(paths) > 1:  # rows of several runs contain rounds from before the prediction
        given = ", ".join(readable(folder_of(path).name) for path in paths)
        several = (f"{len(paths)} runs in one table: {given}",)
        several += ("predictions (PREDICTED) are only in the report of a single run",) if told else ()
        told = []
    # With several runs, each imported row has the name of its run.
    named = list(zip(names if len(paths) > 1 else [""], headers, strict=True))
    header = replace(
        ours[0],
        hosts=tuple({host.hostname: host for header in headers for host in header.hosts}.values()),
        imported=tuple(replace(row, run=run) for run, of in named for row in of.imported),
        bandwidths=tuple(replace(one, run=run) for run, of in named for one in of.bandwidths),
    )
    return Material(
        header,
        join([run.records for run in runs]),
        (*several, *(f"joined although {reason}" for reason in reasons)),
        [source_of(path) for path in paths],
        predictions=told,
        certificate=None if several else runs[0].certificate,
        summaries=runs[0].summaries,
    )


def report(asked: Asked) -> None:
    if asked.output is None and asked.format in FOR_FILES and sys.stdout.isatty():
        suffix = "tgz" if asked.format == "archive" else asked.format
        raise UsageError(f"--format {asked.format}: not for a terminal; add --output FILE.{suffix}")
    allowed = signature.signers(asked.signed_by) if asked.signed_by else None
    with unpacked(asked.runs) as folders:
        runs = [folders[run] for run in asked.runs]
        if allowed:
            for run in asked.runs:
                said = signature.verified(folder_of(folders[run]), allowed, run)
                complain(f"{run}: signed by {said}", NAME, "verified")
        if asked.format == "archive":
            deliver(archive.pack(runs[0], anonymous=asked.anonymous), asked.output)
        else:
            _report(asked, runs)


def _report(asked: Asked, runs: Sequence[Path]) -> None:
    told = cost.read_prices(asked.prices) if asked.prices else None
    material = joined(runs, although_different=asked.join)
    has_another_verdict = material.has_another_verdict
    hidden = Disguise(hosts_of(material.header, material.records)) if asked.anonymous else None
    material = hidden.material(material) if hidden else material
    if told or asked.base:
        base = bases_found(asked.base, material) if asked.base else None
        material.pricing = Pricing(told, asked.epoch_samples, asked.knee, base)
    deliver(rendered(asked, material, color=has_color(asked.output), hidden=hidden), asked.output)
    if has_another_verdict:
        raise UsageError(f"{runs[0].name}: its verdict is not the one of its records, which this report shows")


def rendered(asked: Asked, material: Material, *, color: bool, hidden: Disguise | None = None) -> str | bytes:
    match asked.format:
        case "svg" if asked.figure == "screen":
            return screen.picture(material, _place(asked, material, hidden), theme=asked.theme)
        case "html" | "svg" | "png" | "pdf":
            return _drawn(asked, material)
        case "table" if asked.is_screen and material.rows:
            place = _place(asked, material, hidden)
            text = screen.render(material, place, width=terminal_width(), color=color)
            return f"{text}{material.doc.last_line}\n"
        case "table":
            return terminal.whole(material.doc, color=color)
        case "markdown":
            return markdown.draw(material.doc)
        case "latex":
            return latex.compact(material) if asked.is_short and material.rows else latex.render(material.doc)
        case "csv":
            return csv.of_rows(material.rows, material.header, material.pricing)
        case "json":
            return json.render(material)
        case "reference":
            return reference.toml(reference.of(material))
    return openmetrics.render(material)


def _place(asked: Asked, material: Material, hidden: Disguise | None) -> Place:
    """Return the place of a single run; of several runs together there is none."""
    if len(asked.runs) > 1 or material.header.is_import:
        return Place("")
    folder = folder_of(asked.runs[0])
    page = folder / PAGE_FILE
    place = Place(str(folder), str(page) if page.exists() else "", material.lacks, packed=is_archive(folder))
    return hidden.place(place) if hidden else place


def _drawn(asked: Asked, material: Material) -> str | bytes:
    """Draw a page or a figure; the libraries are imported here, since they take long."""
    try:
        from scaling.report.formats import html
        from scaling.report.formats.plots import draw
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed: pip install matplotlib jinja2"
        raise UsageError(f"--format {asked.format}: {missing}") from None
    if asked.format == "html":
        return html.render(material)
    kind, name = cast(draw.Kind, asked.format), asked.figure or ""
    return draw.render(material, name, kind, theme=asked.theme, scale=asked.scale, is_column=asked.column)


def _act(argv: Sequence[str]) -> None:
    if asked := flags.parse(argv):
        report(asked)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status. A user's mistake is one line on stderr."""
    gc.set_threshold(100_000, 50)  # the default took a third of the time with 10,000 records
    return obey(_act, argv, NAME)


if __name__ == "__main__":
    raise SystemExit(main())
