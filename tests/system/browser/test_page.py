"""The page in a real browser: what its readers get, with and without scripts, on paper, on a phone, in CI."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scaling.analysis.table.analyse import rows
from scaling.report.formats import csv, html
from scaling.report.material import Material
from tests.support import debian, hostile
from tests.support.emulated_records import emulated_run
from tests.support.histories import history_page
from tests.support.report_scenes import SCENES, cluster_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Route

PACKAGES = ("chromium", "fonts-dejavu-core")


def missing() -> str | None:
    """Why there is no browser, after trying to install one; None where there is."""
    if why := _lacks("playwright"):
        return why
    if shutil.which("chromium") is None and (why := debian.install(*PACKAGES)):
        return why
    return None if shutil.which("chromium") else "no chromium on PATH after installing it"


def missing_axe() -> str | None:
    """Why nobody looks for what WCAG forbids; None where axe-core is there, which one test alone needs."""
    return _lacks("axe_core_python")


def _lacks(module: str) -> str | None:
    return None if importlib.util.find_spec(module) else f"no {module}: pip install -e '.[test]'"


def axe() -> str:
    """Deque's axe-core, which looks for what WCAG forbids."""
    spec = importlib.util.find_spec("axe_core_python")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8")


# What Jenkins sends with every file that a job publishes.
JENKINS = "sandbox; default-src 'none'; img-src 'self'; style-src 'self'"
# A4 between margins of 12 mm, at 96 pixels to the inch.
PRINTED_PX, PAGE_PX = 703, 1032
HISTORY = "history"
RUNS = {**SCENES, "emulated": emulated_run, "hostile": hostile.hostile_run}
# How much wider another font than the one that was measured may make a text.
SLACK_PX = 3.0

LEAVING = """(slack) => [...document.querySelectorAll("figure svg")].flatMap(svg => {
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter(text => {
    const own = text.getBoundingClientRect();
    return own.width && (own.left < box.left - slack || own.right > box.right + slack
      || own.top < box.top - slack || own.bottom > box.bottom + slack);
  }).map(text => text.textContent);
})"""
INVISIBLE = """() => [...document.querySelectorAll("figure svg :is(path, use, rect, text)")].filter(one => {
  if (one.closest("defs, clipPath")) return false;
  const target = one.tagName === "use" ? document.querySelector(one.getAttribute("href")) : one;
  const drawn = [one, target].some(of => of && ["fill", "stroke"].some(name => {
    const value = getComputedStyle(of)[name];
    return value && value !== "none" && !/^rgba\\(.*, 0\\)$/.test(value);
  }));
  return !drawn;
}).map(one => one.outerHTML.slice(0, 200))"""
TOO_WIDE = """() => [...document.querySelectorAll("table, figure")].filter(one =>
  one.getBoundingClientRect().right > innerWidth).map(one => one.id || one.textContent.slice(0, 80))"""
WIDER = """() => [...document.querySelectorAll("figure > div")].filter(one =>
  one.scrollWidth > one.clientWidth).map(one => one.className)"""
COLOURS = """() => [...new Set([...document.querySelectorAll("figure svg path")].map(one =>
  getComputedStyle(one).fill))].sort()"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if why := missing():
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("pages")

    def of(run: str) -> Path:
        path = folder / f"{run}.html"
        if not path.exists():
            text = history_page() if run == HISTORY else html.render(Material(*RUNS[run]()))
            path.write_text(text, encoding="utf-8")
        return path

    return of


@pytest.fixture
def opened(chromium: Browser, written: Callable[[str], Path]) -> Iterator[Callable[..., Page]]:
    """Opens a run's page in a context of its own; the console and the network must see nothing else."""
    contexts: list[BrowserContext] = []
    heard: list[str] = []

    def open_(run: str, **settings: Any) -> Page:
        context = chromium.new_context(**{"viewport": {"width": 1360, "height": 900}, **settings})
        contexts.append(context)
        page = context.new_page()
        address = written(run).as_uri()
        page.on("console", lambda said: heard.append(said.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("dialog", lambda dialog: heard.append(dialog.message))
        page.on("request", lambda request: None if request.url == address else heard.append(request.url))
        page.goto(address)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert heard == []


# ---------------------------------------------------------------- what is seen


@pytest.mark.parametrize("run", sorted({*RUNS, HISTORY}))
def test_a_page_is_whole_and_says_nothing_to_the_console(opened: Callable[..., Page], run: str) -> None:
    """One request; no text leaves its figure; what is drawn is seen; figures have names; nothing is wider than the
    window, on a phone neither, where figures are drawn for it."""
    page = opened(run)
    assert page.evaluate(INVISIBLE) == []
    for figure in page.locator("figure svg").all():
        assert figure.get_attribute("role") == "img"
        assert figure.locator("> title").text_content() and figure.locator("> desc").text_content()
    page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
    for width, kind in ((1360, "wide"), (768, "wide"), (390, "narrow")):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(LEAVING, SLACK_PX) == []
        assert page.evaluate(WIDER) == []
        shown = page.locator("figure > div > svg:visible")
        assert shown.count() == page.locator(f"figure > .{kind} > svg:visible").count()


def test_without_scripts_figures_and_rows_are_the_same(opened: Callable[..., Page]) -> None:
    with_, without = opened("cluster"), opened("cluster", java_script_enabled=False)
    for what in ("figure svg", "#rows tbody tr", "dl dd"):
        assert without.locator(what).count() == with_.locator(what).count() > 0
    assert with_.locator("#filter").is_visible() and not without.locator("#filter").is_visible()


@pytest.mark.skipif(missing_axe() is not None, reason=str(missing_axe()))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_that_wcag_forbids(opened: Callable[..., Page], scheme: str) -> None:
    for run in ("cluster", HISTORY):
        page = opened(run, color_scheme=scheme, bypass_csp=True)
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        page.evaluate(axe())
        found = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})")
        assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]] == []
        assert found["passes"]


def test_figures_follow_the_theme(opened: Callable[..., Page]) -> None:
    page = opened("default")
    colour = "getComputedStyle(document.querySelector('figure svg text')).fill"
    light = page.evaluate(colour)
    page.select_option("#theme", "dark")
    dark = page.evaluate(colour)
    assert light != dark
    page.select_option("#theme", "auto")
    assert page.evaluate(colour) == light


def test_colours_stay_under_the_policy_of_jenkins(chromium: Browser, written: Callable[[str], Path]) -> None:
    """It takes styles and scripts; attributes it leaves."""

    def seen(**headers: str) -> tuple[list[str], int, int]:
        def answer(route: Route) -> None:
            body = written("cluster").read_text(encoding="utf-8")
            route.fulfill(body=body, headers={"Content-Type": "text/html; charset=utf-8", **headers})

        context = chromium.new_context()
        context.route("**/*", answer)
        page = context.new_page()
        page.goto("http://ci.test/page.html")
        found = (page.evaluate(COLOURS), page.locator("#rows tbody tr").count(), page.locator("svg").count())
        context.close()
        return found

    plain, sandboxed = seen(), seen(**{"Content-Security-Policy": JENKINS})
    assert sandboxed == plain and len(plain[0]) > 4


def test_print_has_every_column_and_every_table(opened: Callable[..., Page]) -> None:
    page = opened("cluster", viewport={"width": PRINTED_PX, "height": PAGE_PX})
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate("[...document.querySelectorAll('details')].every(one => one.open)")
    assert page.evaluate(TOO_WIDE) == []


@pytest.mark.parametrize("run", ["default", "cluster"])
def test_the_first_printed_page_has_verdict_figures_and_table(opened: Callable[..., Page], run: str) -> None:
    page = opened(run, viewport={"width": PRINTED_PX, "height": PAGE_PX})
    page.emulate_media(media="print")
    box = page.locator("#rows").bounding_box()
    assert box is not None and box["y"] + box["height"] <= PAGE_PX
    assert page.locator("#sound").evaluate("one => getComputedStyle(one).breakBefore") == "page"


# ---------------------------------------------------------------- what can be done


def column(page: Page, heading: str) -> list[str]:
    headings = [text.strip() for text in page.locator("#rows thead th").all_text_contents()]
    at = headings.index(heading)
    return [text.strip() for text in page.locator(f"#rows tbody tr td:nth-child({at + 1})").all_text_contents()]


@pytest.mark.parametrize("heading", ["N", "images/s", "efficiency"])
def test_columns_sort_by_number_both_ways_and_leave_what_is_empty_last(
    opened: Callable[..., Page], heading: str
) -> None:
    page = opened("cluster")
    button = page.locator("#rows thead th button", has_text=heading).first
    for is_down in (False, True):
        button.focus()
        page.keyboard.press("Enter")
        texts = column(page, heading)
        known = [float(text.split()[0].rstrip("%")) for text in texts if text != "-"]
        assert known == sorted(known, reverse=is_down)
        assert texts[len(known) :] == ["-"] * (len(texts) - len(known))
    assert page.locator("#rows thead th[aria-sort=descending]").count() == 1


def test_the_filter_says_how_many_rows_are_left(opened: Callable[..., Page]) -> None:
    page = opened("cluster")
    assert page.locator("#shown").text_content() == "15 of 15 rows"
    page.fill("#filter", "GLOO failed")
    assert page.locator("#shown").text_content() == "1 of 15 rows"
    page.fill("#filter", "nobody")
    assert page.locator("#shown").text_content() == "0 of 15 rows"
    assert not any(line.is_visible() for line in page.locator("#rows tbody tr").all())


def test_the_link_gives_the_csv_of_the_command(opened: Callable[..., Page]) -> None:
    page = opened("cluster")
    with page.expect_download() as waiting:
        page.click("a[download]")
    assert waiting.value.suggested_filename == "rows.csv"
    assert Path(waiting.value.path()).read_text(encoding="utf-8") == csv.of_rows(rows(cluster_run()[1]))


# ---------------------------------------------------------------- what must not happen


@pytest.mark.parametrize(("run", "title"), [("hostile", "3 strategies on 2 nodes x "), (HISTORY, "Runs: ")])
def test_names_that_are_scripts_stay_names(opened: Callable[..., Page], run: str, title: str) -> None:
    page = opened(run)
    assert page.title().startswith(title)
    assert page.locator("script").count() == 1 and page.locator("img").count() == 0
    said = page.locator("body").text_content() or ""
    for name in (hostile.HOST, hostile.LONG) if run == HISTORY else hostile.SPOKEN:
        assert name in said


def test_a_script_that_got_in_would_not_run(chromium: Browser, written: Callable[[str], Path]) -> None:
    """The policy holds where escaping fails."""
    planted = written("default").with_name("planted.html")
    script = "document.title='pwned'"
    wrong = f'<main><script>{script}</script><img src=x onerror="{script}">'
    planted.write_text(written("default").read_text(encoding="utf-8").replace("<main>", wrong), encoding="utf-8")
    page = chromium.new_page()
    page.goto(planted.as_uri())
    assert page.title().startswith("fake:a on ")
    assert page.locator("main > script").count() == 1
    page.close()


# ---------------------------------------------------------------- the answer first

SMALLEST = """() => Math.min(...[...document.querySelectorAll("figure svg text")].filter(text =>
  text.getBoundingClientRect().width).map(text => {
  const svg = text.closest("svg"), scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  return parseFloat(getComputedStyle(text).fontSize) * scale;
}))"""


@pytest.mark.parametrize("run", ["default", "cluster", "gpus"])
def test_the_answer_and_two_figures_are_above_the_fold(opened: Callable[..., Page], run: str) -> None:
    page = opened(run, viewport={"width": 1280, "height": 900})
    assert page.locator("figure h3").all_text_contents()[:2] == ["Efficiency", "Loss of efficiency, by cause"]
    one, other = (page.locator("figure .wide svg").nth(at).bounding_box() for at in (0, 1))
    assert one and other and one["y"] == other["y"] and one["x"] + one["width"] < other["x"]
    assert max(one["y"] + one["height"], other["y"] + other["height"]) <= 900
    answer = page.locator(".answer").bounding_box()
    assert answer and answer["y"] + answer["height"] < one["y"]


@pytest.mark.parametrize(("width", "least_px"), [(1280, 12.0), (390, 11.0)])
def test_texts_of_figures_are_legible(opened: Callable[..., Page], width: int, least_px: float) -> None:
    page = opened("cluster", viewport={"width": width, "height": 900})
    page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
    assert page.evaluate(SMALLEST) >= least_px


def test_a_button_copies_the_command(opened: Callable[..., Page]) -> None:
    page = opened("default", permissions=["clipboard-read", "clipboard-write"])
    page.click("#copy")
    assert page.locator("#copy").text_content() == "copied"
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#command").text_content()
    without = opened("default", java_script_enabled=False)
    assert without.locator("#command").is_visible() and not without.locator("#copy").is_visible()


def test_the_measurement_is_judged_in_a_folded_part(opened: Callable[..., Page]) -> None:
    page = opened("cluster")
    inside = page.locator("#sound figure h3")
    assert not inside.first.is_visible()
    page.locator("#sound > summary").click()
    assert inside.first.is_visible() and "Every round, against the mean of its row" in inside.all_text_contents()
