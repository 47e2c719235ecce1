"""Flags that were given and would change nothing: refused, since their user expects otherwise. Pure.

Of a run only what its own command line says is looked at: a file or an older run may say more than one needs.
"""

from __future__ import annotations

from collections.abc import Collection

from scaling.errors import UsageError
from scaling.plan import epochs
from scaling.plan.config import SweepConfig
from scaling.workloads import models

# Whose rate all efficiencies are against.
BASELINES = {"solo", "each"}


def check(config: SweepConfig, given: Collection[str]) -> None:
    """Refuse flags among the `given` ones that this configuration has no use for; raises UsageError."""
    epochs.check_flags(config, given)
    if "max_rounds" in given and config.target_ci is None:
        raise UsageError(
            f"--max-rounds {config.max_rounds}: says how far --target-ci may go; add --target-ci 1%, or give "
            "--rounds"
        )
    if "soak_s" in given and config.soak_s and config.interleave is False:
        raise UsageError(
            f"--soak-s {config.soak_s:g} with --no-interleave: of points that take turns with their plain loops; "
            "leave it out"
        )
    if config.kinds is not None and config.target_ci is not None and not BASELINES & set(config.kinds):
        raise UsageError(
            f"--target-ci {config.target_ci}: of efficiencies, which --kinds {','.join(config.kinds)} leaves "
            "without a baseline; add each to --kinds"
        )
    if "kinds" in given and config.has_passes and config.kinds != ("exchange",):
        raise UsageError(f"--kinds with --pass {','.join(config.pass_)}: passes have no controls; leave it out")
    tokens = config.model is not None and not models.spec(config.model).reads_images
    if "memory_format" in given and config.memory_format != "contiguous" and tokens:
        raise UsageError(
            f"--memory-format {config.memory_format}: {config.model} reads tokens, and that is of images; "
            "leave it out"
        )
