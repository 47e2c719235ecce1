"""Rank 0's part of a verdict: preflight, rounds until it is decided, and where it fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import log
from pathlib import Path
from typing import get_args

from msgspec.structs import replace

from scaling.analysis.statistics.intervals import ERROR, FIRST_ROUNDS, of_estimate
from scaling.analysis.table.analyse import kept, rows
from scaling.analysis.table.footnotes import slow_ranks
from scaling.analysis.table.rows import Row
from scaling.command import deliver, show
from scaling.errors import UsageError
from scaling.hosts import networks
from scaling.plan.plan import Plan, check_given
from scaling.records.point import Device
from scaling.records.run import FAIL, NO_VERDICT, PASS, Certificate, CertificateResult, Criterion, Header
from scaling.report import archive, reference, signature, verdict
from scaling.report.anonymous import Disguise
from scaling.report.answer import largest_loss
from scaling.report.formats import junit
from scaling.report.labels import headline
from scaling.report.material import Material
from scaling.report.parts import NONE
from scaling.run.invocation import resolve
from scaling.run.ranks import Lead
from scaling.sweep.sweep import Sweep
from scaling.sweep.view.plain import View
from scaling.text import MINUTE_S, as_json, counted, duration, one_line
from scaling.tools.bisect.flags import KINDS
from scaling.tools.bisect.leading import LEAST_NODES, Bisection, check_one_exchange, most_points
from scaling.tools.certify import NAME
from scaling.tools.certify.flags import Asked
from scaling.tools.check.facts import Findings, Verdict
from scaling.tools.check.lead import Lead as PreflightLead
from scaling.tools.check.lead import age_s
from scaling.tools.check.verdicts import devices, judge

PREFLIGHT_FILE = "preflight.json"
LINKS_S = 11.0
# Topics of the preflight that name a link or a node which slows the others. A device below the others does not end
# the search: a healthy one may be.
SLOW = ("bandwidth", "latency")
# The topic of other programs: they may be the reason, but do not end the search for it.
BUSY = "load"
EXIT_CODES: dict[CertificateResult, int] = {PASS: 0, FAIL: 1, NO_VERDICT: 3}
# A round may take this many times as long as those before.
LONGER = 1.1
# The proof of a search needs the time of these rounds.
ROUNDS_OF_SEARCH = 1

# ---------------------------------------------------------------- preflight


def preflight(lead: PreflightLead, asked: Asked) -> Findings | None:
    """Measure devices and links; None for --dry-run, which measures nothing. Raises UsageError."""
    enrolled = lead.enrolled()
    if asked.invocation.dry_run:
        return None
    given = asked.invocation.given
    hidden = Disguise(one.host.hostname for one in enrolled) if given.get("anonymous") else None
    lead.say = lambda text: show(f"certify: {one_line(hidden.text(text) if hidden else text)}\n")
    known = networks.read_fabric(given.get("fabric"))
    facts = lead.found(enrolled, given.get("interconnect", ()), known)
    kind = given.get("device", "auto").partition(":")[0]
    facts = lead.rated(facts, next((one for one in get_args(Device) if one == kind), None))
    facts = lead.linked(facts, time.monotonic() + LINKS_S)
    found = Findings(facts=facts, verdicts=judge(facts), wall_s=age_s())
    for line in map(_finding, _faults(found)):
        lead.say(line)
    return found


def _faults(found: Findings) -> list[Verdict]:
    return [one for one in found.verdicts if one.level != "ok"]


def _finding(one: Verdict) -> str:
    return f"{one.level}: {one.topic}: {one.text}"


# ---------------------------------------------------------------- criteria


def criteria(asked: Asked, world_size: int) -> tuple[Criterion, ...]:
    """Return the criteria: efficiency, and with a reference also the rate of one device alone."""
    known = asked.reference
    scaled = known.scaled(world_size) if known else None
    efficiency = _criterion(f"efficiency at N={world_size}", "", asked.line, scaled)
    if known is None:
        return (efficiency,)
    work = known.work.workload
    return efficiency, _criterion(
        "one device alone", f"{work.unit}/s", asked.line, known.rate, work.units_per_sample
    )


def _criterion(name: str, unit: str, line: float, value: reference.Value | None, scale: float = 1.0) -> Criterion:
    found = Criterion(name=name, unit=unit, line=line, looks=(), result=NO_VERDICT)
    if value is None:
        return found
    side = of_estimate(value.estimate)
    return replace(
        found,
        line=scale * line * value.mean,
        reference=scale * value.mean,
        line_variance=side.variance or 0.0,
        line_df=side.df,
    )


# ---------------------------------------------------------------- the verdict


def certify(lead: Lead, asked: Asked, found: Findings | None) -> int:
    """Measure, judge and print; return the exit code. `found` is the preflight. Raises UsageError."""
    given = {**asked.invocation.given, "world_sizes": [lead.cluster.size]}
    invocation = replace(asked.invocation, given=given)
    made = lead.planned(resolve(invocation), tries=not invocation.dry_run)
    check_given(made, given)
    header = lead.header(made)
    check_one_exchange(made, "a verdict is on one")
    if asked.reference:
        point = next(cell for cell in made.cells if cell.kind == "exchange")
        if apart := reference.differences(asked.reference, header, point):
            raise UsageError(f"--reference {asked.reference_name}: is of another launch: {'; '.join(apart)}")
    if invocation.dry_run:
        return lead.show(made)
    judging = Judge(lead, asked, found, header)
    judging.check_budget(made)
    code = lead.measure(lead.proved(made), invocation, more=judging.more, certify=judging.certificate)
    if judging.found is None:
        return code
    tests = _junit(judging.found, judging.folder)
    if asked.junit:
        deliver(tests, asked.junit, "--junit")
    if asked.sign:
        signature.sign(judging.folder, asked.sign, archive.signed_forms(judging.folder))
    if asked.archive:
        files = {"junit.xml": tests.encode(), "verdict.json": as_json(judging.found).encode()}
        deliver(archive.pack(judging.folder, files, anonymous=made.config.anonymous), asked.archive, "--archive")
    return EXIT_CODES[judging.found.result]


# The field of a JUnit case that says how a criterion ended.
FIELDS: dict[CertificateResult, str] = {PASS: "out", FAIL: "failure", NO_VERDICT: "skipped"}


def _junit(found: Certificate, folder: Path) -> str:
    cases = [junit.Case(one.name, **{FIELDS[one.result]: verdict.said(one)}) for one in found.criteria]
    if found.result != verdict.result_of(found.criteria):
        failed = found.why if found.result == FAIL else ""
        cases.append(junit.Case("receipts and marks", failure=failed, skipped="" if failed else found.why))
    return junit.suite(NAME, cases, [("run", str(folder)), ("reference", found.reference)], found.result)


class Judge:
    """Looks after each round, and judges at the end: `found` is the certificate then, `folder` the run's."""

    def __init__(self, lead: Lead, asked: Asked, preflight: Findings | None, header: Header) -> None:
        self.found: Certificate | None = None
        self.folder = Path()
        self._lead = lead
        self._asked = asked
        self._header = header
        self._faults = _faults(preflight) if preflight else []
        self._preflight = preflight
        self._devices = preflight.facts.device_rates if preflight else ()
        self._criteria = criteria(asked, lead.cluster.size)
        self._budget_s = MINUTE_S * asked.minutes
        self._preflight_s = preflight.wall_s if preflight else 0.0
        self._begun_s = lead.mailbox.clock()

    @property
    def _measured_s(self) -> float:
        return self._lead.mailbox.clock() - self._begun_s

    def _has_time(self, needed_s: float) -> bool:
        return self._preflight_s + self._measured_s + needed_s <= self._budget_s

    def check_budget(self, made: Plan) -> None:
        """Raise UsageError if the first rounds do not fit."""
        if not self._has_time(made.estimate_s):
            least_s = self._preflight_s + made.estimate_s
            raise UsageError(
                f"--minutes {self._asked.minutes:g}: {counted(made.rounds, 'round')} take about "
                f"{duration(least_s)} here; give --minutes {int(least_s / MINUTE_S) + 1} or more"
            )

    def more(self, sweep: Sweep, rounds: int) -> bool:
        """Look; return whether another round is needed and fits in the budget."""
        found = self._judged(sweep)
        undecided = found.result == NO_VERDICT and verdict.result_of(found.criteria) == NO_VERDICT
        # No look after so many rounds: each of them lacks a control run.
        if not undecided or (rounds >= 2 * FIRST_ROUNDS and not found.criteria[0].looks):
            return False
        return self._has_time(LONGER * self._measured_s / rounds)

    def _judged(self, sweep: Sweep) -> verdict.Judged:
        records = kept(sweep.records)
        return verdict.judge(records, rows(records), self._criteria)

    def certificate(self, sweep: Sweep, screen: View) -> Certificate:
        """Judge the rows; a FAIL is located, within the budget."""
        self.folder = sweep.store.folder
        if self._preflight:
            (self.folder / PREFLIGHT_FILE).write_text(as_json(self._preflight))
        material = Material(self._header, sweep.records)
        row = headline(material.rows)
        result, why, judged = self._judged(sweep)
        known = self._asked.reference
        self.found = Certificate(
            result=result,
            why=why,
            criteria=judged,
            error=ERROR,
            minutes=self._asked.minutes,
            where=tuple(self._where(row, material, sweep, screen)) if result == FAIL else (),
            reference=f"{Path(self._asked.reference_name).name} (sum {known.sum[:12]})" if known else "",
            findings=tuple(map(_finding, self._faults)),
            devices=self._devices,
        )
        return self.found

    # ------------------------------------------------------------ where it fails

    def _where(self, row: Row | None, material: Material, sweep: Sweep, screen: View) -> Iterator[str]:
        yield from (f"{one.topic}: {one.text}" for one in self._faults if one.topic == devices.TOPIC)
        yield from self._below_reference()
        # A link or a node explains slow ranks: its neighbours in a ring wait for it, and are no cause.
        slow = [f"{one.topic}: {one.text}" for one in self._faults if one.topic in SLOW]
        if not slow and row is not None and row.failed is None:
            slow = [f"ranks: {text}" for text in slow_ranks(material.cell(row), material.controls)]
        yield from slow
        if not slow and len(sweep.plan.hosts) >= LEAST_NODES:
            yield self._searched(sweep, screen)
        yield from (f"{one.topic}: {one.text}" for one in self._faults if one.topic == BUSY)
        if row is not None and (cause := largest_loss(row)) != NONE:
            yield f"largest loss: {cause}"

    def _below_reference(self) -> Iterator[str]:
        """Yield the devices that are below the line of the reference's device alone, by more than devices differ.

        A healthy device is named in 1 % of runs at most, over all devices and quantities (Bonferroni).
        """
        known = self._asked.reference.devices if self._asked.reference else {}
        for quantity, beyond in devices.spreads(self._devices).items():
            if (typical := known.get(quantity.field)) is None:
                continue
            for one in self._devices:
                rate = quantity.of(one)
                if rate and log(rate / typical) < log(self._asked.line) - beyond:
                    below = f"{100 * (1 - rate / typical):.0f} % below the reference"
                    yield f"{devices.TOPIC}: {one.place}: {quantity.name} {below}"

    def _searched(self, sweep: Sweep, screen: View) -> str:
        """Search the slow node if the budget allows it."""
        points = most_points(len(sweep.plan.hosts), ROUNDS_OF_SEARCH)
        if not self._has_time(points * self._measured_s / max(1, len(sweep.records))):
            return "node: not searched, the time is over; python -m scaling bisect searches it"
        lead, name = self._lead, f"{sweep.plan.config.name}-bisect"
        own = {"world_sizes": [lead.cluster.size], "kinds": KINDS, "rounds": ROUNDS_OF_SEARCH, "name": name}
        wanted = replace(self._asked.invocation, given={**self._asked.invocation.given, **own})
        made = lead.proved(lead.planned(resolve(wanted)))
        with lead.create(made, lead.header(made)) as opened:
            search = Bisection(made, Sweep(made, lead.mailbox, opened, screen), screen, None)
            search.run()
        named = f"slow node: {', '.join(search.blamed)}" if search.blamed else "no single node is slow"
        return f"{named} (python -m scaling report {opened.folder})"
