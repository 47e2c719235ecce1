"""The last screen and the page of a verdict."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.records.run import FAIL, NO_VERDICT, PASS, Certificate, Criterion, Look
from scaling.report.answer import answer
from scaling.report.formats import screen
from scaling.report.formats.html import page
from scaling.report.material import Material, Place
from tests.support.golden import check_golden
from tests.support.report_scenes import default_run
from tests.support.scripted_records import header, point, record

LOOKS = (
    Look(rounds=2, mean=0.91, low=0.88, high=0.94, error=0.005),
    Look(rounds=3, mean=0.912, low=0.9, high=0.924, error=0.0017),
)
EFFICIENCY = Criterion(name="efficiency at N=2", unit="", line=0.95, looks=LOOKS, result=FAIL)
ALONE = Criterion(
    name="one device alone", unit="images/s", line=2850.0, looks=(), result=NO_VERDICT, reference=3000.0
)
CERTIFICATES = {
    "fail": Certificate(
        result=FAIL,
        why="efficiency at N=2 is at most 92.4 %; at least 95.0 % is needed",
        criteria=(EFFICIENCY, ALONE),
        error=0.01,
        minutes=15.0,
        where=(
            "bandwidth: ib0: node2 is slow: it sends 2.4 Gb/s, the others carry 9.6",
            "largest loss: waiting 5.1 %",
        ),
        reference="own.toml (sum 0123456789ab)",
        findings=("warning: bandwidth: ib0: node2 is slow",),
    ),
    "pass": Certificate(
        result=PASS,
        why="",
        criteria=(Criterion(name="efficiency at N=2", unit="", line=0.8, looks=LOOKS, result=PASS),),
        error=0.01,
        minutes=5.0,
    ),
}
PLACE = Place("results/20261126-031800-certify", "results/20261126-031800-certify/page.html")


def material(name: str) -> Material:
    head, records = default_run()
    own = replace(head, program="scaling certify", command=("--line", "95%"))
    return Material(own, records, certificate=CERTIFICATES[name])


@pytest.mark.parametrize("name", CERTIFICATES)
def test_screen(name: str) -> None:
    found = material(name)
    drawn = screen.render(found, PLACE, width=80, color=False)
    check_golden(f"screen-certify-{name}.txt", f"{drawn}{found.doc.last_line}\n")


def test_an_emulated_verdict_is_stamped() -> None:
    records = [
        record(point(kind, size, number, device="emulated", profile="p100"), step_s)
        for number in range(3)
        for kind, size, step_s in (("solo", 1, 0.1), ("exchange", 2, 0.11))
    ]
    found = answer(Material(header(launch_size=2), records, certificate=CERTIFICATES["pass"]))
    assert found.verdict.startswith("PASS, EMULATED: ")


def test_the_page_leads_with_the_verdict() -> None:
    text = page.render(material("fail"))
    first = text.index("FAIL")
    assert first < text.index("of linear scaling") < text.index("at least 95.0 % is needed") < text.index("<svg")
