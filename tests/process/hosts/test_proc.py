"""What other commands print."""

from __future__ import annotations

import pytest

from scaling.hosts import proc


def test_output_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    assert proc.output("sh", "-c", 'echo "$LC_ALL${GIT_DIR-unset}"') == "Cunset\n"
    assert proc.output("sh", "-c", "echo printed; exit 3") == ""
    assert proc.output("no-such-command-anywhere") == ""
