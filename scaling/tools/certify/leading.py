"""Rank 0's part of a verdict: preflight, rounds until it is decided, and where it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import NamedTuple, get_args

from msgspec.structs import replace

from scaling.analysis.measured.controls import Controls
from scaling.analysis.statistics.intervals import Estimate, Side, of_estimate, quantile, welch
from scaling.analysis.table.catalogue import claimless, mark_named
from scaling.analysis.table.footnotes import describe, slow_ranks
from scaling.analysis.table.rows import Row
from scaling.command import deliver, show
from scaling.errors import UsageError
from scaling.hosts import networks
from scaling.plan.plan import Plan, check_given
from scaling.records.point import Device
from scaling.records.run import FAIL, NO_VERDICT, PASS, Certificate, CertificateResult, Criterion, Header, Look
from scaling.report import archive, reference, signature, verdict, words
from scaling.report.anonymous import Disguise
from scaling.report.answer import largest_loss
from scaling.report.formats import junit
from scaling.report.headline import headline
from scaling.report.material import Material
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
from scaling.tools.check.ranks import age_s
from scaling.tools.check.verdicts import devices, judge

# ---------------------------------------------------------------- rule
#
# A group sequential test of each quantity against its line, one look after each round.
#
# After k looks a bound is wrong with probability ERROR / (k (k + 1)). These sum up to ERROR over any number of
# looks, so all bounds hold together with probability 1 - ERROR (Bonferroni). Several quantities share ERROR.
#
# An upper bound below the line is a FAIL. Lower bounds above all lines are a PASS. Both are Student's bounds of
# logarithms, over rounds. The reason for this spending of alpha: a round is a start of all processes, so a verdict
# has few. Student's t is exact then, if each look has its own level. The levels of O'Brien and Fleming (1979)
# leave almost nothing to the first looks, which have the fewest degrees of freedom. A mixture test (mSPRT) needs
# a known variance. `python -m tests.bench.certify` prints the error rates.


# Probability of a false FAIL at the line, and of a false PASS.
ERROR = 0.01


def error_of(look: int) -> float:
    """Return the error spent at the look of this number, from 1 on."""
    return ERROR / (look * (look + 1))


def fixed(value: float) -> Side:
    """Return a line that is known exactly, in logarithms."""
    return Side(log(value), 0.0, 1, 1)


def looked(criterion: Criterion, found: Estimate, line: Side, among: int) -> Criterion:
    """Return the criterion after one more look; `among` criteria share the error.

    `found` is the estimate so far, `line` the least logarithm that passes. A decided criterion does not change.
    """
    if criterion.result != NO_VERDICT:
        return criterion
    error = error_of(len(criterion.looks) + 1) / among
    side = of_estimate(found)
    beyond = welch(line, side)
    if beyond.se is None or side.variance is None:
        return criterion
    half = quantile(beyond.df, 1 - 2 * error) * beyond.se
    look = Look(
        rounds=found.n,
        mean=exp(side.mean),
        low=exp(side.mean - half),
        high=exp(side.mean + half),
        error=error,
    )
    return replace(criterion, looks=(*criterion.looks, look), result=_result(beyond.mean, half))


def _result(beyond: float, half: float) -> CertificateResult:
    if beyond + half < 0:
        return FAIL
    return PASS if beyond - half >= 0 else NO_VERDICT


def result_of(criteria: Sequence[Criterion]) -> CertificateResult:
    """Return FAIL if any criterion fails, PASS if all pass."""
    found = {one.result for one in criteria}
    if FAIL in found:
        return FAIL
    return PASS if found == {PASS} else NO_VERDICT


PREFLIGHT_FILE = "preflight.json"
LINKS_S = 11.0
# Topics of the preflight that name a device, a link or a node which slows the others.
SLOW = (devices.TOPIC, "bandwidth", "latency")
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
    facts = lead.rated(facts, _device(given.get("device", "auto")))
    facts = lead.linked(facts, time.monotonic() + LINKS_S)
    found = Findings(facts=facts, verdicts=judge(facts), wall_s=age_s())
    for line in map(_finding, _faults(found)):
        lead.say(line)
    return found


def _faults(found: Findings) -> list[Verdict]:
    return [one for one in found.verdicts if one.level != "ok"]


def _finding(one: Verdict) -> str:
    return f"{one.level}: {one.topic}: {one.text}"


def _device(given: str) -> Device | None:
    """Return the kind of device that `--device` names; None to choose for each rank."""
    kind = given.partition(":")[0]
    return next((one for one in get_args(Device) if one == kind), None)


# ---------------------------------------------------------------- criteria


class Bar(NamedTuple):
    """A line with its error, in logarithms, and how to find the value that it is for."""

    criterion: Criterion
    line: Side
    find: Callable[[Row, Material], Estimate | None]


def bars(asked: Asked, world_size: int) -> tuple[Bar, ...]:
    """Return the criteria: efficiency, and with a reference also the rate of one device alone."""
    known = asked.reference
    scaled = known.scaled(world_size) if known else None
    efficiency = _bar(f"efficiency at N={world_size}", "", asked.line, scaled, _efficiency)
    if known is None:
        return (efficiency,)
    unit = f"{known.work.workload.unit}/s"
    scale = known.work.workload.units_per_sample
    return efficiency, _bar("one device alone", unit, asked.line, known.rate, _rate, scale)


def _bar(
    name: str,
    unit: str,
    line: float,
    value: reference.Value | None,
    find: Callable[[Row, Material], Estimate | None],
    scale: float = 1.0,
) -> Bar:
    if value is None:
        side, mean = fixed(line), None
    else:
        side, mean = of_estimate(value.estimate.times(scale * line)), scale * value.mean
    criterion = Criterion(
        name=name,
        unit=unit,
        line=line * (1.0 if mean is None else mean),
        looks=(),
        result=NO_VERDICT,
        reference=mean,
    )
    return Bar(criterion, side, find)


def _efficiency(row: Row, _: Material) -> Estimate | None:
    return row.efficiency


def _rate(row: Row, material: Material) -> Estimate | None:
    found = reference.rate_alone(material, row)
    return found.times(row.workload.units_per_sample) if found else None


# ---------------------------------------------------------------- the verdict


def certify(lead: Lead, asked: Asked, found: Findings | None) -> int:
    """Measure, judge and print; return the exit code. `found` is the preflight. Raises UsageError."""
    given = {**asked.invocation.given, "world_sizes": [lead.cluster.size]}
    invocation = replace(asked.invocation, given=given)
    made = lead.planned(resolve(invocation), tries=not invocation.dry_run)
    check_given(made, given)
    header = lead.header(made)
    check_one_exchange(made, "a verdict is on one")
    _match(asked, made, header)
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
        archive.write(judging.folder, asked.archive, files, anonymous=made.config.anonymous, flag="--archive")
    return EXIT_CODES[judging.found.result]


def _match(asked: Asked, made: Plan, header: Header) -> None:
    if asked.reference is None:
        return
    point = next(cell for cell in made.cells if cell.kind == "exchange")
    if apart := reference.differences(asked.reference, header, point):
        raise UsageError(f"--reference {asked.reference_name}: is of another launch: {'; '.join(apart)}")


def _junit(found: Certificate, folder: Path) -> str:
    cases = [_case(one) for one in found.criteria]
    if found.result != result_of(found.criteria):
        failed = found.why if found.result == FAIL else ""
        cases.append(junit.Case("receipts and marks", failure=failed, skipped="" if failed else found.why))
    return junit.suite(NAME, cases, [("run", str(folder)), ("reference", found.reference)], found.result)


def _case(one: Criterion) -> junit.Case:
    said = verdict.said(one)
    match one.result:
        case "PASS":
            return junit.Case(one.name, out=said)
        case "FAIL":
            return junit.Case(one.name, failure=said)
    return junit.Case(one.name, skipped=said)


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
        self._bars = bars(asked, lead.cluster.size)
        self._criteria = [bar.criterion for bar in self._bars]
        self._budget_s = MINUTE_S * asked.minutes
        self._clock = lead.mailbox.clock
        self._preflight_s = preflight.wall_s if preflight else 0.0
        self._begun_s = self._clock()

    @property
    def _measured_s(self) -> float:
        return self._clock() - self._begun_s

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
        material = Material(self._header, sweep.records)
        row = headline(material.rows)
        for number, bar in enumerate(self._bars):
            if row is not None and (found := bar.find(row, material)) is not None:
                one = self._criteria[number]
                self._criteria[number] = looked(one, found, bar.line, len(self._bars))
        if result_of(self._criteria) != NO_VERDICT or not any(one.looks for one in self._criteria):
            return False
        return self._has_time(LONGER * self._measured_s / rounds)

    def certificate(self, sweep: Sweep, screen: View) -> Certificate:
        """Judge the rows; a FAIL is located, within the budget."""
        self.folder = sweep.store.folder
        if self._preflight:
            (self.folder / PREFLIGHT_FILE).write_text(as_json(self._preflight))
        material = Material(self._header, sweep.records)
        row = headline(material.rows)
        result, why = self._result(row)
        known = self._asked.reference
        self.found = Certificate(
            result=result,
            why=why,
            criteria=tuple(self._criteria),
            error=ERROR,
            minutes=self._asked.minutes,
            where=tuple(self._where(row, material, sweep, screen)) if result == FAIL else (),
            reference=f"{Path(self._asked.reference_name).name} (sum {known.sum[:12]})" if known else "",
            findings=tuple(map(_finding, self._faults)),
            devices=self._devices,
        )
        return self.found

    def _result(self, row: Row | None) -> tuple[CertificateResult, str]:
        if row is None:
            return NO_VERDICT, "no exchange was measured"
        if row.failed is not None:
            return FAIL, f"the exchange failed: {describe(row.failed)}"
        if wrong := next((mark for mark in ("MISLABELLED", "UNSENT") if mark in row.flags), ""):
            return FAIL, f"{wrong}: {mark_named(wrong).about or mark_named(wrong).claimless}"
        result = result_of(self._criteria)
        if result != FAIL and (doubt := _doubt(row)):
            return NO_VERDICT, doubt
        return result, "; ".join(verdict.reason(one) for one in self._criteria if one.result == result != PASS)

    # ------------------------------------------------------------ where it fails

    def _where(self, row: Row | None, material: Material, sweep: Sweep, screen: View) -> Iterator[str]:
        slow = [f"{one.topic}: {one.text}" for one in self._faults if one.topic in SLOW]
        slow += self._below_reference()
        if row is not None and row.failed is None:
            slow += [f"ranks: {text}" for text in slow_ranks(material.cell(row), Controls(sweep.records))]
        yield from slow
        if not slow and len(sweep.plan.hosts) >= LEAST_NODES:
            yield self._searched(sweep, screen)
        yield from (f"{one.topic}: {one.text}" for one in self._faults if one.topic == BUSY)
        if row is not None and (cause := largest_loss(row)) != words.NONE:
            yield f"largest loss: {cause}"

    def _below_reference(self) -> Iterator[str]:
        """Yield the devices that are below the line of the reference's device alone."""
        known = self._asked.reference.devices if self._asked.reference else {}
        for quantity in devices.QUANTITIES:
            line = self._asked.line * known.get(quantity.field, 0.0)
            for one in self._devices:
                if (rate := quantity.of(one)) is not None and rate < line:
                    below = f"{100 * (1 - rate / known[quantity.field]):.0f} % below the reference"
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


def _doubt(row: Row) -> str:
    """Return why a row is no proof; "" if it is one."""
    if row.nodes > 1 and "VERIFIED" not in row.flags:
        why = (row.receipt.why if row.receipt else "") or "no counters were read"
        return f"UNVERIFIED: nothing proves that the bytes crossed {row.interconnect}: {why}"
    if mark := claimless(row):
        return f"{mark}: {mark_named(mark).claimless}"
    if "SUPERLINEAR" in row.flags:
        return "SUPERLINEAR: the plain loop on one device is too slow to be the base"
    return ""
