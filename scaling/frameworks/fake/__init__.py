"""A scripted strategy without a framework: it sleeps, fails and counts on command."""

from __future__ import annotations

from scaling.frameworks.base import Framework

FRAMEWORK = Framework(name="fake", strategies={"plain": "strategy"}, any_mode=True, resident_bytes=50_000_000)
