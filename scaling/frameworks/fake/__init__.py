"""A scripted strategy without a framework: it sleeps, fails and counts on command."""

from __future__ import annotations

from scaling.frameworks.base import Framework

FRAMEWORK = Framework(name="fake", strategies={"plain": "strategy"}, resident_bytes=50_000_000)
