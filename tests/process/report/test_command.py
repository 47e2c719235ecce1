"""`python -m scaling report` as a process: its bytes, readers that leave, the page of a run; LaTeX compiles."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.report.formats import latex, terminal
from scaling.report.material import Material, Source
from tests.support.hostile import hostile_run
from tests.support.matrix import cases
from tests.support.report_scenes import SCENES, cluster_run, default_run
from tests.support.scripted_records import written
from tests.support.started import SCALING, ours, ran, run_of

# The page beside a run that has ended: its path before the last line, its bytes those of the report's command.
QUICK = (
    "--strategy", "fake:a", "--rounds", "1", "--windows", "3", "--window-s", "0.01", "--kinds", "solo,exchange",
    "--soak-s", "0", "--world-sizes", "1", "--option", "step_s=0.002", "--results", "results",
)  # fmt: skip
# What a package that is not installed looks like.
ABSENT = "raise ModuleNotFoundError(\"No module named 'jinja2'\", name='jinja2')\n"


def test_a_run_ends_with_its_page_and_the_line_for_programs(tmp_path: Path) -> None:
    done = ran(*QUICK, cwd=tmp_path, SCALING_PAGE="1")
    assert (done.returncode, done.stderr) == (0, "")
    run = run_of(tmp_path)
    *_, page, more, again, last = done.stdout.splitlines()
    name = run.relative_to(tmp_path)
    assert page.split() == ["page", f"{name}/page.html"] and f" {name} " in more and again.endswith(f" {name}")
    assert last.startswith("scaling: fake:a N=1 ")
    words = ("report", run, "--format", "html", "--output", "again.html")
    drawn = ran(*words, cwd=tmp_path, program=SCALING)
    assert (drawn.returncode, drawn.stdout, drawn.stderr) == (0, "", "")
    assert (tmp_path / "again.html").read_bytes() == (run / "page.html").read_bytes()
    assert sorted(path.name for path in run.iterdir()) == ["logs", "page.html", "run.jsonl"]


@pytest.mark.parametrize(("flags", "page"), cases([(("--no-page",), "1"), ((), "0")], [(("--no-page",), "1")]))
def test_a_run_without_a_page_has_the_metrics_that_the_report_prints(
    tmp_path: Path, flags: tuple[str, ...], page: str
) -> None:
    done = ran(*QUICK, *flags, "--metrics", "run.prom", cwd=tmp_path, SCALING_PAGE=page)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (run_of(tmp_path) / "page.html").exists()
    assert [line.split()[0] for line in done.stdout.splitlines()[-3:]] == ["more", "again", "scaling:"]
    shown = ran("report", run_of(tmp_path), "--format", "openmetrics", cwd=tmp_path, program=SCALING)
    assert (shown.returncode, shown.stdout) == (0, (tmp_path / "run.prom").read_text())
    assert 'scaling_point_failed{run="sweep",strategy="fake:a"' in shown.stdout


def test_a_page_that_cannot_be_made_is_a_line_on_stderr_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "absent" / "jinja2").mkdir(parents=True)
    (tmp_path / "absent" / "jinja2" / "__init__.py").write_text(ABSENT)
    path = os.pathsep.join([str(tmp_path / "absent"), os.environ.get("PYTHONPATH", "")])
    done = ran(*QUICK, cwd=tmp_path, PYTHONPATH=path, SCALING_PAGE="1")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    name = run_of(tmp_path).relative_to(tmp_path)
    why = f"scaling: error: {name}/page.html: not written: --format html: jinja2 is not installed:"
    assert line.startswith(why)
    assert line.endswith(f"python -m scaling report {name} --format html --output {name}/page.html")
    assert done.stdout.splitlines()[-1].startswith("scaling: fake:a N=1 ")


@pytest.mark.parametrize("end", ["", "run.jsonl"])
def test_the_command_prints_the_bytes_of_render(tmp_path: Path, end: str) -> None:
    made, records = default_run()
    run = written(tmp_path / "run", (made, records))
    done = ran("report", run / end, "--verbose", cwd=tmp_path, program=SCALING)
    assert (done.stdout, done.stderr) == (terminal.render(made, records, color=False), "")


@pytest.mark.parametrize(
    "words",
    [["scaling", "report", "RUN", "--format", "json"], ["scaling", "report", "--help"], ["scaling.run", "--help"],
     ["scaling", "--help"]],
)  # fmt: skip
def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path, words: list[str]) -> None:
    run = written(tmp_path / "run", cluster_run())
    command = [str(run) if word == "RUN" else word for word in words]
    listener, writer = os.pipe()
    os.close(listener)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command], stdout=writer, stderr=subprocess.PIPE, env=ours(), text=True,
            check=False, timeout=60,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


PAPER = r"""\documentclass[twocolumn]{article}
\usepackage{booktabs}
\begin{document}
%s
See Table~\ref{tab:2026-11-28-sweep}.
\end{document}
"""
RUNS = {name: run for name, run in {**SCENES, "hostile": hostile_run}.items() if Material(*run()).rows}
SOURCE = Source("2026-11-28_sweep", "")


def compact(run: str) -> str:
    made, records = RUNS[run]()
    return latex.compact(Material(made, records, sources=[SOURCE]))


@pytest.mark.parametrize("run", sorted(RUNS))
def test_a_paper_with_the_tables_compiles(run: str, tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex: apt-get install texlive-latex-base texlive-latex-recommended")
    made, records = RUNS[run]()
    text = compact(run) + latex.render(Material(made, records).doc)
    (tmp_path / "paper.tex").write_text(PAPER % text, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"]
    for _ in range(2):  # the second resolves references
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
    assert "undefined" not in done.stdout and "Missing character" not in done.stdout


@pytest.mark.parametrize("run", sorted(RUNS))
def test_the_compact_table_has_a_line_for_each_row(run: str) -> None:
    made, records = RUNS[run]()
    text = compact(run)
    (kinds, body), *more = re.findall(r"\\begin{tabular}{(\w+)}\n(.*?)\\end{tabular}", text, flags=re.DOTALL)
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert not more and len(lines) == len(Material(made, records).rows) + 1
    assert all(len(re.findall(r"(?<!\\)&", line)) == len(kinds) - 1 for line in lines)
    assert r"\label{tab:2026-11-28-sweep}" in text
