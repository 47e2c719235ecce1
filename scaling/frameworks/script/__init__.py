"""A user's own training, unchanged: `python -m scaling.run -- train.py ARGS`."""

from __future__ import annotations

from scaling.frameworks.base import Exchange, Framework

FRAMEWORK = Framework(
    name="script",
    strategies={"plain": "command"},
    any_mode=True,
    # A guess: imports of torch and of a library on it.
    startup_s=8.0,
    exchanges={"": Exchange(messages="buckets", by_nccl=True)},
)
