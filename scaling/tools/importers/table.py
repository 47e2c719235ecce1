"""The documented table: CSV, TSV or JSON lines, as spreadsheets, TensorBoard and Weights & Biases export them.

A row is the result of one launch. With a column `step`, rows of a cell are one launch: its value is their median
without the first step.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from scaling.records.run import ImportedRow
from scaling.tools.importers.engine import agrees_with_flags, as_degrees, as_text, counts, of_steps, unit_of_steps
from scaling.tools.importers.generic import UNITS, per_second
from scaling.tools.importers.launch import Launch
from scaling.tools.importers.lines import CUT, DAMAGED, LogLine
from scaling.tools.importers.logs import Form, Found, Given, Refused, Skipped, Tool, row, world_size

NAME = "table"
COLUMNS = {
    "world_size": ("n", "world_size", "devices", "gpus", "num_gpus", "ranks"),
    "rate": ("rate", "throughput", "value"),
    "unit": ("unit",), "model": ("model",), "precision": ("precision", "dtype"), "parallelism": ("parallelism",),
    "batch_size": ("batch", "batch_size", "batch_per_device"),
    "label": ("label", "name", "run"),
    "step": ("step", "epoch", "iteration", "global_step", "train/global_step", "_step"),
    "loss": ("loss", "train_loss", "train/loss"),
}  # fmt: skip
# a rate by its column's name
_EACH = r"(?:/|_per_|\bper_)(?:gpu|device|chip)s?(?![a-z0-9])"
_RATE = re.compile(
    rf"(images|samples|sequences|tokens|steps)(?:/|_per_|_)s(?:ec(?:ond)?)?(?:{_EACH})?$|throughput(?:{_EACH})?$"
)
# what W&B adds to a column
_BOUNDS = ("__min", "__max")
_DAMAGED = (*DAMAGED, csv.Error)


def is_table(text: str, form: Form) -> bool:
    """True if a line is the header of a table, or the first of its JSON lines. Raises Refused."""
    try:
        names = _names(text)
        columns = _columns(names, form)
    except _DAMAGED:
        return False
    return "rate" in columns and bool(columns.keys() & {"world_size", "step"})


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """Read a table into rows. Raises Refused."""
    each = (line for line in lines if line.text.strip())
    first = next(each, LogLine(1, None, ""))
    if not is_table(first.text, given.form):
        raise Refused("is no table: its first line names no column of rates, and none of devices (N) or steps")
    names, skipped = _names(first.text), Skipped()
    columns, found = _columns(names, given.form), list[ImportedRow]()
    launches: dict[tuple[tuple[str, str], ...], Launch] = defaultdict(lambda: Launch(given))
    for line in [first, *each] if _is_json(first.text) else each:
        try:
            if CUT in line.text:
                raise ValueError
            is_json = _is_json(line.text)
            cells = json.loads(line.text) if is_json else dict(zip(names, _cells(line.text), strict=True))
            told = {column: str(cells.get(name, "")).strip() for column, name in columns.items()}
            said = {column: text for column, text in told.items() if text}
            if not said["rate"][-1].isdigit():
                raise ValueError
            rate, step = per_second(said.pop("rate"), _unit(said, columns, given)), said.pop("step", None)
            loss = said.pop("loss", None)
            launch = Launch(given) if step is None else launches[tuple(said.items())]
            launch.add(line, {"loss": loss})
            if given.world_size or given.batch_size:
                launch.add(line, counts(" ".join(f"{name}={value}" for name, value in cells.items())))
            if step is None:
                found.append(_made(said, rate, columns, launch))
            else:
                launch.add(line, {"rate": rate, "step": int(float(step))})
        except _DAMAGED:
            skipped.add(line)
    for key, launch in launches.items():
        found.append(_made(dict(key), None, columns, launch))
    return Found(rows=tuple(found), notes=skipped.notes())


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def _cells(text: str) -> list[str]:
    delimiter = "\t" if "\t" in text else ";" if ";" in text and "," not in text else ","
    return next(csv.reader([text], delimiter=delimiter, strict=True)) if '"' in text else text.split(delimiter)


def _names(text: str) -> Sequence[str]:
    return list(json.loads(text)) if _is_json(text) else [name.strip() for name in _cells(text)]


def _columns(names: Sequence[str], form: Form) -> dict[str, str]:
    """The name of each column that is known. Raises Refused for several columns of rates."""
    plain = {name: _plain(name) for name in names if not name.lower().endswith(_BOUNDS)}
    known = {
        column: next(name for name in plain if plain[name] in aliases)
        for column, aliases in COLUMNS.items()
        if set(aliases) & set(plain.values())
    }
    if form.rate or "rate" not in known:
        found = [name for name in plain if re.search(form.rate or _RATE, name if form.rate else plain[name])]
        of_all = [name for name in found if not re.search(_EACH, plain[name])]
        if len(rates := of_all if of_all and not form.rate else found) > 1:
            raise Refused(f"has several columns of rates ({', '.join(rates[:4])}): choose one with --rate NAME")
        known |= dict.fromkeys(["rate"][: len(rates)], "".join(rates))
    return known


def _unit(said: Mapping[str, str], columns: Mapping[str, str], given: Given) -> str:
    unit = said.get("unit", "").removesuffix("/s") or given.form.unit
    unit = unit or ((found := _RATE.search(_plain(columns["rate"]))) and found[1]) or ""
    if unit not in UNITS:
        raise Refused(f"does not say the unit of its rates: add --unit ({', '.join(UNITS)})")
    return unit


@cache
def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9/]+", "_", name.lower())


def _made(said: Mapping[str, str], rate: float | None, columns: Mapping[str, str], launch: Launch) -> ImportedRow:
    given, unit = launch.given, _unit(said, columns, launch.given)
    launch.devices = world_size([int(said["world_size"])] if "world_size" in said else [], given)
    batches = [int(float(said["batch_size"]))] if "batch_size" in said else []
    notes: tuple[str, ...] = ("the median of its steps without the first",) if rate is None else ()
    rate = launch.steady("rate", "step") if rate is None else rate
    named = UNITS[unit]
    if named == "steps":
        launch.facts["batch_size"].update({str(batch): LogLine(0, None, "") for batch in batches})
        (rate, notes), named = of_steps(launch, rate, *notes), unit_of_steps(launch)
    agrees_with_flags(launch)
    if given.form.per_device or re.search(_EACH, _plain(columns["rate"])):
        rate, notes = launch.devices * rate, (*notes, "the rate of a device x devices")
    return row(
        given, tool=NAME, unit=named, rate=None if launch.failed else rate, failed=launch.failed,
        world_size=launch.devices, batches=batches,
        models=[said.get("model", "")], precisions=[said.get("precision", "")],
        parallelism=as_text(as_degrees(said.get("parallelism", ""))), label=said.get("label", ""),
        notes=notes, steps=launch.used.size, spread=launch.spread(),
    )  # fmt: skip


TOOL = Tool(NAME, (), re.compile(""), read)
