"""A headless Chromium, Debian's, driven by Playwright; installed where it may be.

Playwright's wheel brings a driver and no browser, and Debian's Chromium takes orders from it as its own does.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import debian

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, until the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


def axe() -> str:
    """Deque's axe-core, which looks for what WCAG forbids."""
    spec = importlib.util.find_spec("axe_core_python")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8")
