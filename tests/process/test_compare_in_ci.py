"""The workflow of compare's README, its step `compare` run as the CI runs it: red on a loss, green on nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest
import yaml

from scaling.tools.compare import flags
from tests.support.compared_runs import launch, on_disk

LAUNCHES = 3


def the_step() -> str:
    readme = (Path(flags.__file__).parent / "README.md").read_text()
    workflow = yaml.safe_load(readme.partition("```yaml\n")[2].partition("```")[0])
    (found,) = (step["run"] for step in workflow["jobs"]["compare"]["steps"] if step.get("name") == "compare")
    return str(found)


def runs(folder: Path, seed: int, lost: float) -> None:
    """Three launches that differ by 0.3 % by themselves."""
    folder.mkdir()
    for number in range(LAUNCHES):
        dice = Random(seed + number)
        on_disk(folder / str(number), launch(dice, sd=0.005, launch_sd=0.003, lost=lost))


@pytest.mark.parametrize(("lost", "code"), [(0.05, 1), (0.0, 0)], ids=["a loss of 5 %", "nothing"])
def test_the_workflow_is_red_on_a_planted_loss_and_green_on_nothing(
    tmp_path: Path, lost: float, code: int
) -> None:
    runs(tmp_path / "results-base", 0, 0.0)
    runs(tmp_path / "results-new", 100, lost)
    python = tmp_path / "new/.venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        # As GitHub runs a step: https://docs.github.com/actions/reference/workflow-syntax-for-github-actions
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", the_step()],
        cwd=tmp_path, env={**os.environ, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, "")
    suite = ElementTree.parse(tmp_path / "scaling.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("6", "4" if lost else "0")
    assert ("\n| slower | fake:" in (tmp_path / "summary").read_text()) == bool(lost)
