"""The lines that pages show of a lab run one after the other in a real lab."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support import documented, labs, stand_ins

# What such a launch measures takes minutes, and is tried in test_acceptance.py.
LAUNCH = "-- -np 16 python -m scaling.run"
WORD = re.compile(r"scaling lab (up|down|status|rate|run)")


@labs.needs_lab
def test_they_run(tmp_path: Path) -> None:
    name = labs.name("documented")
    stand_ins.install(tmp_path)
    (tmp_path / "bin" / "COMMAND").symlink_to("/bin/true")
    lines = [one.line for one in documented.commands() if "scaling lab" in one.line]
    assert any("lab down" in line for line in lines)
    try:
        for shown in sorted(lines, key=lambda line: ("lab down" in line, "lab up" not in line)):
            line = WORD.sub(rf"\g<0> --name {name}", shown).replace(LAUNCH, f"{LAUNCH} --dry-run")
            done = stand_ins.shell(line, tmp_path, SCALING_LAB=name)
            assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    finally:
        labs.end("documented")
