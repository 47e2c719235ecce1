"""`python -m scaling report` as a process, and the page beside a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.report.formats import terminal
from tests.support.matrix import cases
from tests.support.report_scenes import cluster_run, default_run
from tests.support.scripted_records import written

# The page beside a run that has ended: its path before the last line, its bytes those of the report's command.

QUICK = (
    "--strategy", "fake:a", "--rounds", "1", "--windows", "3", "--window-s", "0.01", "--kinds", "solo,exchange",
    "--soak-s", "0", "--world-sizes", "1", "--option", "step_s=0.002", "--results", "results",
)  # fmt: skip
# What a package that is not installed looks like.
ABSENT = "raise ModuleNotFoundError(\"No module named 'jinja2'\", name='jinja2')\n"


def start(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    without = {key: value for key, value in os.environ.items() if not key.startswith("SCALING_")}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=cwd, env={**without, **environ}, capture_output=True, text=True, timeout=120, check=False
    )


def run_in(folder: Path) -> Path:
    (found,) = (folder / "results").iterdir()
    return found


def test_a_run_ends_with_its_page_and_the_line_for_programs(tmp_path: Path) -> None:
    done = start("scaling.run", "--ranks", "1", *QUICK, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = run_in(tmp_path)
    *_, page, more, again, last = done.stdout.splitlines()
    name = run.relative_to(tmp_path)
    assert page.split() == ["page", f"{name}/page.html"] and f" {name} " in more and again.endswith(f" {name}")
    assert last.startswith("scaling: fake:a N=1 ")
    drawn = start("scaling", "report", str(run), "--format", "html", "--output", "again.html", cwd=tmp_path)
    assert (drawn.returncode, drawn.stdout, drawn.stderr) == (0, "", "")
    assert (tmp_path / "again.html").read_bytes() == (run / "page.html").read_bytes()
    assert sorted(path.name for path in run.iterdir()) == ["logs", "page.html", "run.jsonl"]


@pytest.mark.parametrize(
    ("flags", "environ"), cases([(("--no-page",), {}), ((), {"SCALING_PAGE": "0"})], [(("--no-page",), {})])
)
def test_a_run_without_a_page_has_the_metrics_that_the_report_prints(
    tmp_path: Path, flags: tuple[str, ...], environ: dict[str, str]
) -> None:
    done = start("scaling.run", "--ranks", "1", *QUICK, *flags, "--metrics", "run.prom", cwd=tmp_path, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (run_in(tmp_path) / "page.html").exists()
    assert [line.split()[0] for line in done.stdout.splitlines()[-3:]] == ["more", "again", "scaling:"]
    shown = start("scaling", "report", str(run_in(tmp_path)), "--format", "openmetrics", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, (tmp_path / "run.prom").read_text())
    assert 'scaling_point_failed{run="sweep",strategy="fake:a"' in shown.stdout


def test_metrics_without_a_folder_are_refused_before_a_run(tmp_path: Path) -> None:
    done = start("scaling.run", "--ranks", "1", *QUICK, "--metrics", "none/run.prom", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == f"scaling: error: --metrics none/run.prom: there is no folder {tmp_path}/none; make it first\n"
    )
    assert not [*tmp_path.iterdir()]


def test_a_page_that_cannot_be_made_is_a_line_on_stderr_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "absent" / "jinja2").mkdir(parents=True)
    (tmp_path / "absent" / "jinja2" / "__init__.py").write_text(ABSENT)
    path = os.pathsep.join([str(tmp_path / "absent"), os.environ.get("PYTHONPATH", "")])
    done = start("scaling.run", "--ranks", "1", *QUICK, cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    name = run_in(tmp_path).relative_to(tmp_path)
    assert line.startswith(
        f"scaling: error: {name}/page.html: not written: --format html: jinja2 is not installed:"
    )
    assert line.endswith(f"python -m scaling report {name} --format html --output {name}/page.html")
    assert done.stdout.splitlines()[-1].startswith("scaling: fake:a N=1 ")


# `python -m scaling report` as a process: the bytes that it prints, and a reader that leaves.


@pytest.mark.parametrize("end", ["", "run.jsonl"])
def test_the_command_prints_the_bytes_of_render(tmp_path: Path, end: str) -> None:
    made, records = default_run()
    run = written(tmp_path / "run", (made, records))
    command = [sys.executable, "-m", "scaling", "report", str(run / end), "--verbose"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert done.stdout == terminal.render(made, records, color=False).encode()
    assert done.stderr == b""


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    run = written(tmp_path / "run", cluster_run())
    child = subprocess.Popen(
        [sys.executable, "-m", "scaling", "report", str(run), "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(timeout=60) == 0


@pytest.mark.parametrize("words", [["scaling", "report"], ["scaling.run"], ["scaling"]])
def test_a_reader_of_the_help_that_leaves_early_is_no_error(words: list[str]) -> None:
    listener, writer = os.pipe()
    os.close(listener)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *words, "--help"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
