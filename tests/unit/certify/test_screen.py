"""The last screen and the page of a verdict."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.records.run import FAIL, NO_VERDICT, PASS, Certificate, CertificateResult, Criterion
from scaling.records.task import DeviceRates
from scaling.report.answer import answer
from scaling.report.formats import html, openmetrics, screen
from scaling.report.material import Material, Place
from tests.support.golden import check_golden
from tests.support.report_scenes import default_run
from tests.support.scripted_records import header, point, record, sweep

EFFICIENCY = Criterion(name="efficiency at N=2", unit="", line=0.98, looks=(), result=FAIL)
ALONE = Criterion(
    name="one device alone", unit="images/s", line=285.0, looks=(), result=NO_VERDICT, reference=300.0
)
GIVEN = Certificate(result=PASS, why="", criteria=(), error=0.01, minutes=15.0)
CERTIFICATES = {
    "fail": replace(
        GIVEN,
        result=FAIL,
        criteria=(EFFICIENCY, ALONE),
        where=(
            "bandwidth: ib0: node2 is slow: it sends 2.4 Gb/s, the others carry 9.6",
            "largest loss: waiting 5.1 %",
        ),
        reference="own.toml (sum 0123456789ab)",
        findings=("warning: bandwidth: ib0: node2 is slow",),
    ),
    "pass": replace(GIVEN, criteria=(replace(EFFICIENCY, line=0.8, result=PASS),), minutes=5.0),
}
PLACE = Place("results/20261126-031800-certify", "results/20261126-031800-certify/page.html")


ROUNDS = 8


def material(name: str, result: CertificateResult | None = None) -> Material:
    """Eight rounds of two ranks, one of which is slower by 0.2 % in each second round."""
    head, _ = default_run()
    own = replace(head, program="scaling certify", command=("--line", "95%"))
    records = [
        one
        for number in range(ROUNDS)
        for one in sweep(number, 0.1, {2: 0.107 * (1.002 if number % 3 == 1 else 1.0)})
    ]
    found = CERTIFICATES[name]
    return Material(own, records, certificate=replace(found, result=result or found.result))


def test_the_page_has_a_certificate_to_sign() -> None:
    """Result, line, error rates, devices by serial number, version; a page of another run has none."""
    of = material("pass")
    assert of.certificate is not None
    gpu = DeviceRates(
        launch_rank=0, host="node1", device="cuda", name="NVIDIA H200", index=3, uuid="GPU-3",
        serial="1654922003917", work=of.records[0].point.workload,
    )  # fmt: skip
    text = html.render(Material(of.header, of.records, certificate=replace(of.certificate, devices=(gpu,))))
    section = text.partition('<section id="certificate"')[2].partition("</section>")[0]
    for said in ("PASS: ", "at least 80.0 %", "a false FAIL and a false PASS: 1 % each", "scaling 0.1.0"):
        assert said in section
    told = ("NVIDIA H200, GPU 3", "1654922003917", "GPU-3")
    assert "".join(f'<td class="t">{one}</td>' for one in told) in section
    assert 'id="certificate"' not in html.render(Material(*default_run()))


@pytest.mark.parametrize("name", CERTIFICATES)
def test_screen(name: str) -> None:
    found = material(name)
    drawn = screen.render(found, PLACE, width=80, color=False)
    check_golden(f"screen-certify-{name}.txt", f"{drawn}{found.doc.last_line}\n")


def test_an_emulated_verdict_is_stamped() -> None:
    records = [
        record(point(kind, size, number, device="emulated", profile="p100"), step_s)
        for number in range(ROUNDS)
        for kind, size, step_s in (("solo", 1, 0.1), ("exchange", 2, 0.105 + 1e-4 * (number % 3)))
    ]
    found = answer(Material(header(launch_size=2), records, certificate=CERTIFICATES["pass"]))
    assert found.verdict.startswith("PASS, EMULATED: ")


def test_the_page_leads_with_the_verdict() -> None:
    text = html.render(material("fail"))
    first = text.index("FAIL")
    assert first < text.index("of linear scaling") < text.index("at least 98.0 % is needed") < text.index("<svg")


def test_a_forged_verdict_is_not_shown() -> None:
    """One word of the certificate in run.jsonl was changed."""
    forged = material("fail", PASS)
    assert forged.certificate is not None and forged.certificate.result == FAIL
    assert forged.certificate.why.startswith("the file says PASS")
    shown = (
        screen.render(forged, PLACE, width=200, color=False),
        forged.doc.last_line,
        openmetrics.render(forged),
    )
    assert all("FAIL" in one for one in shown)
