"""The page as text: one file, the same bytes everywhere, nothing of a run is markup, marks in each figure.

What a browser makes of it: tests/system/browser. (Drawing starts fc-list once, to find fonts: no unit test.)
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure as Drawing
from msgspec.structs import replace

from scaling.analysis.table.analyse import rows
from scaling.errors import UsageError
from scaling.report.figures import FIGURES
from scaling.report.formats import csv, html
from scaling.report.formats.plots import curves, draw
from scaling.report.formats.plots.draw import Kind
from scaling.report.formats.plots.sheet import CURRENT, RED
from scaling.report.material import Material, source_of
from tests.support import hostile
from tests.support.emulated_records import emulated_run
from tests.support.histories import history_lines, history_page
from tests.support.report_scenes import SCENES, cluster_run, networks_run
from tests.support.scripted_records import failed, faster, written
from tests.support.spoilt import shown, spoilt

SERIOUS = {"cluster": ("OVERSUBSCRIBED", "FAILED"), "networks": ("MISLABELLED",), "default": ()}


class Markup(HTMLParser):
    """All elements of a page with their attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in = tag

    def handle_data(self, data: str) -> None:
        if self._in not in ("script", "style"):
            self.text += data


@cache
def material(scene: str) -> Material:
    return Material(*SCENES[scene]())


@cache
def made(scene: str) -> str:
    return html.render(material(scene))


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_every_run_has_a_page_without_requests_styles_and_foreign_scripts(scene: str) -> None:
    text = made(scene)
    found = Markup(text)
    assert len(text.encode()) < 500_000
    assert [tag for tag, _ in found.elements if tag in ("script", "link", "iframe", "img", "image")] == ["script"]
    for tag, attributes in found.elements:
        assert "style" not in attributes and not any(name.startswith("on") for name in attributes), tag
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:text/csv")), (tag, value)
    assert CURRENT not in text
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = {
        name for _, attributes in found.elements for name in (attributes.get("aria-labelledby") or "").split()
    }
    assert named <= set(ids)


def test_the_page_of_a_history_has_neither_and_names_its_runs() -> None:
    """Hostile names, marks and all; the table of the newest first, its CSV as a link."""
    text = history_page()
    found = Markup(text)
    assert [tag for tag, _ in found.elements if tag in ("script", "link", "iframe", "img", "image")] == ["script"]
    assert not any(name.startswith("on") or name == "style" for _, has in found.elements for name in has)
    links = [has["href"] or "" for tag, has in found.elements if tag == "a"]
    assert all(link.startswith(("#", "data:text/csv")) for link in links)
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) and CURRENT not in text and len(text.encode()) < 1_000_000
    assert "EMULATED</text>" in text and "MISLABELLED</text>" in text
    rows = text.partition('<table id="rows">')[2].partition("</table>")[0]
    count = len(history_lines())
    assert rows.count("<tr>") == count + 1 and f'<tbody>\n<tr><td data-v="{count}">{count}</td>' in rows
    assert history_page() == text


@pytest.mark.parametrize("scene", ["default", "networks"])
def test_no_text_of_a_run_hides_or_turns_text_in_pages_and_figures(scene: str) -> None:
    """Names of any length, too."""
    of = Material(*spoilt(*SCENES[scene]()))
    assert shown(html.render(of))
    assert shown(draw.render(of, "rounds", "svg").decode())


def test_the_policy_names_style_and_script_by_their_hashes() -> None:
    text = made("default")
    policy = unescape(re.findall(r'Content-Security-Policy" content="([^"]+)"', text)[0])
    for tag in ("style", "script"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        digest = base64.b64encode(sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert len((html.HERE / "page.js").read_text()) < 4000


@pytest.mark.parametrize("scene", sorted(SERIOUS))
def test_serious_marks_stand_above_the_figures_and_inside_one(scene: str) -> None:
    text = made(scene)
    above, _, rest = text.partition('<h2 id="figures"')
    for mark in SERIOUS[scene]:
        assert f"<strong>{mark}</strong>" in above
        assert mark in "".join(re.findall(r"<svg.*?</svg>", rest, flags=re.DOTALL))
    assert len(re.findall(r'<p class="banner (?:bad|doubt)"><strong>', above)) == len(SERIOUS[scene])


def test_emulated_figures_say_so_everywhere() -> None:
    """Above, beside the answer, in every figure and in what is saved alone."""
    of = Material(*emulated_run())
    text = html.render(of)
    assert '<p class="banner notice">EMULATED: no device computed anything' in text
    assert '<p class="verdict"><span class="mark doubt">EMULATED</span>' in text
    for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        assert ">EMULATED</text>" in svg
    assert ">EMULATED</text>" in draw.render(of, "loss", "svg").decode()


def test_the_title_says_what_ran_where_and_when_and_the_run() -> None:
    text = html.render(Material(*cluster_run(), (), [source_of(Path("some-run"))]))
    heading = "torch:nccl, torch:gloo on 4 nodes x 4 cores (node1 to node4), 25 Jul 2026"
    assert f"<h1>{heading}</h1>" in text and f"<title>{heading}: some-run</title>" in text


def test_the_command_can_be_copied_without_scripts() -> None:
    head, records = SCENES["default"]()
    named = replace(head, command=("--strategy", "fake:a", "--data-dir", "/a b"))
    text = html.render(Material(named, records))
    assert (
        '<pre id="command">mpirun -np 2 python -m scaling.run --strategy fake:a --data-dir &#39;/a b&#39;</pre>'
        in text
    )
    made_with = text.partition('id="command"')[2].partition("</section>")[0]
    assert "node1 (1 host, 2 ranks)" in made_with and "Python " in made_with and "2026-07-25" in made_with


def test_large_numbers_have_commas_and_small_ones_none() -> None:
    head, records = SCENES["default"]()
    text = html.render(Material(head, [faster(one, 0.01) for one in records]))
    assert "on 2 devices: 59,654 images/s" in text
    assert text.count(">31,756 ± ") == 2 and "31756 " not in text
    assert ">596.5 ± " in made("default") and "on 16 devices: 3937 images/s" in made("cluster")


def test_dots_and_bars_say_their_values() -> None:
    titles = re.findall(r"<title>([^<]*)</title>", made("default"))
    assert "fake:a N=2: 93.2 ± 0.5" in titles
    assert any(re.fullmatch(r"fake:a N=2: exposed comm\. \d\.\d %", title) for title in titles), titles


def test_a_whisker_that_leaves_the_axis_ends_in_an_arrow() -> None:
    axes = Drawing().add_subplot()
    axes.set_ylim(0, 110)
    curves._whisker(axes, 1, -5.0, 234.0, "k")
    curves._whisker(axes, 2, 90.0, 95.0, "k")
    assert [line.get_marker() for line in axes.lines] == ["None", "v", "^", "None", "_", "_"]
    assert [np.max(line.get_ydata()) for line in axes.lines[:3]] == [110, 0, 110]


def test_a_largest_world_size_that_failed_is_the_first_thing_said() -> None:
    head, records = networks_run()
    broken = [failed(one.point) if one.point.world_size == 4 else one for one in records]
    said = Markup(html.render(Material(head, broken))).text
    assert "fake:a over eth0 failed on 4 devices: oom." in said
    assert "The largest measured row: 2 devices, fake:a over ib0, 581.6 images/s" in said


# ---------------------------------------------------------------- what comes from a run is text


def test_nothing_of_a_run_is_markup() -> None:
    text = html.render(Material(*hostile.hostile_run()))
    found = Markup(text)
    for said in hostile.SPOKEN:
        assert said in found.text, said
    assert [tag for tag, _ in found.elements if tag in ("script", "img", "b")] == ["script"]
    assert "\u202e" not in text and "\u2066" not in text
    assert "49" not in re.findall(r"note.*", found.text)[0]


# ---------------------------------------------------------------- the same bytes


def test_the_same_bytes_from_another_folder_time_zone_and_settings_of_matplotlib(tmp_path: Path) -> None:
    run = written(tmp_path / "run", cluster_run())
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 9\nfont.size: 30\ntext.usetex: True\n")
    text = html.render(Material(*cluster_run(), (), [source_of(run)]))
    command = [sys.executable, "-m", "scaling", "report", "../run/run.jsonl", "--format", "html"]
    (tmp_path / "elsewhere").mkdir()
    environ = {**os.environ, "TZ": "Asia/Tokyo", "MATPLOTLIBRC": str(tmp_path / "matplotlibrc"), "LC_ALL": "C"}
    done = subprocess.run(
        command, capture_output=True, check=True, cwd=tmp_path / "elsewhere", env=environ, timeout=120
    )
    assert (done.stdout.decode(), done.stderr) == (text, b"")
    assert f"run.jsonl sha256 {sha256((run / 'run.jsonl').read_bytes()).hexdigest()}" in text


def test_the_csv_of_the_link_is_that_of_the_command() -> None:
    (link,) = re.findall(r'href="data:text/csv;charset=utf-8;base64,([^"]+)"', made("cluster"))
    assert base64.b64decode(link).decode() == csv.of_rows(rows(cluster_run()[1]))


def test_a_page_that_gets_too_large_says_what_it_left_out() -> None:
    whole = made("cluster")
    fewer = html.render(material("cluster"), most_bytes=len(whole.encode()) - 1)
    assert len(fewer) < len(whole)
    assert "this page leaves out: ranks." in fewer and "Ranks by windows" not in fewer


# ---------------------------------------------------------------- figures alone


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_a_figure_alone_is_stamped_with_whose_numbers_it_shows(name: str) -> None:
    of = Material(*SCENES["networks"](), (), [source_of(Path("some-run"))])
    if not list(FIGURES[name](of)):
        with pytest.raises(UsageError, match=f"--figure {name}: this run has no such figure"):
            draw.render(of, name, "svg")
        return
    text = draw.render(of, name, "svg").decode()
    assert text == draw.render(of, name, "svg").decode()
    assert "digits-cnn on digits, fp32, 32 per device" in text and "some-run" in text
    if name in ("speedup", "efficiency", "loss", "rounds", "cards"):
        assert "MISLABELLED" in text and RED in text


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG\r\n"), ("pdf", b"%PDF-1.")])
def test_png_and_pdf_are_the_same_bytes_twice(kind: Kind, start: bytes) -> None:
    first, second = (draw.render(material("default"), "speedup", kind, scale=1.0) for _ in range(2))
    assert first == second and first.startswith(start)


def test_dark_figures_have_their_own_paper_and_ink() -> None:
    light = draw.render(material("default"), "loss", "svg", theme="light")
    dark = draw.render(material("default"), "loss", "svg", theme="dark")
    assert b"#ffffff" in light and b"#14171c" in dark and b"#14171c" not in light


def test_a_figure_for_a_column_has_whole_names_and_its_width() -> None:
    """A column of a paper has 3.5 inches: 252 points, or 700 pixels at 200 dots per inch."""
    of = material("cluster")
    text = draw.render(of, "efficiency", "svg", is_column=True).decode()
    assert re.search(r'<svg [^>]*\bwidth="252pt"', text)
    assert {of.label(row) for row in of.rows} <= set(re.findall(r"<text[^>]*>([^<]+)</text>", text))
    png = draw.render(of, "loss", "png", is_column=True)
    assert int.from_bytes(png[16:20], "big") in (699, 700)
    assert draw.render(of, "loss", "pdf", is_column=True).startswith(b"%PDF")


def test_names_with_signs_that_no_font_has_are_drawn_without_a_warning() -> None:
    head, records = SCENES["default"]()
    named = [
        replace(one, point=replace(one.point, strategy="fake:模型 $a_1$")) if one.point.kind == "exchange" else one
        for one in records
    ]
    text = html.render(Material(head, named))
    assert text.count("fake:模型 $a_1$") > 3
