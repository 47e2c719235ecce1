"""Bytes between nodes by card, against what the exchange must move. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.report.figures.loss import left_out, row_labels, shown
from scaling.report.figures.parts import Cards, Carried, Figure, Table, mark_of, stamps
from scaling.report.material import Material

# Cards that carried less than this part of a row's bytes are noise of the system.
LEAST_SHARE = 0.001
_SCALES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def cards(material: Material) -> Iterator[Figure]:
    """All rounds of each row that crosses nodes."""
    crossing = [row for row in material.rows if row.receipt]
    rows = shown(crossing)
    if not rows:
        return
    most = max(max(row.receipt.sent_bytes.values(), default=0) for row in rows if row.receipt)
    scale, unit = next((one for one in _SCALES if most >= one[0]), _SCALES[-1])
    found: list[Carried] = []
    for row, label in zip(rows, row_labels(material, rows), strict=True):
        receipt = row.receipt
        assert receipt is not None
        total = sum(receipt.sent_bytes.values())
        least, highest = receipt.expected_bytes, receipt.expected_most_bytes or receipt.expected_bytes
        for card in sorted({*receipt.sent_bytes, *receipt.wanted}):
            sent, wanted = receipt.sent_bytes.get(card, 0), card in receipt.wanted
            if wanted or sent >= LEAST_SHARE * total:
                found.append(
                    Carried(
                        label=label,
                        card=card,
                        sent=sent / scale,
                        wanted=wanted,
                        least=least / scale if wanted and least else None,
                        most=highest / scale if wanted and highest else None,
                        mark=mark_of(row.flags),
                    )
                )
    yield Figure(
        name="cards",
        title="Bytes between nodes, by card",
        says=_says(found, unit),
        body=Cards(unit=unit, carried=tuple(found)),
        table=Table(("row", "card", f"sent, {unit}", f"must be sent, {unit}", "marks"), tuple(map(_line, found))),
        stamps=stamps({flag for row in rows for flag in row.flags}),
        left_out=left_out(crossing, rows),
    )


def _says(found: Sequence[Carried], unit: str) -> str:
    wrong = [one for one in found if one.mark == "MISLABELLED" and not one.wanted]
    said = "; ".join(f"{one.label} sent {one.sent:.3g} {unit} over {one.card}, not asked for" for one in wrong)
    return said or "A bar per row and card, with a tick at what the exchange must send over the card asked for"


def _line(one: Carried) -> tuple[str, ...]:
    must = "-" if one.least is None else f"{one.least:.4g}"
    if one.least is not None and one.most is not None and one.most > one.least:
        must += f" to {one.most:.4g}"
    return one.label, one.card + ("" if one.wanted else " (not asked for)"), f"{one.sent:.4g}", must, one.mark
