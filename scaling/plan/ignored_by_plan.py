"""Flags that were given and would change nothing of what is planned on this launch's devices: refused. Pure.

`validation.check_given` refuses such flags by the configuration alone. A file or an older run may say more than
one needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from scaling import frameworks
from scaling.errors import UsageError
from scaling.plan.fields import fields_of, flag
from scaling.plan.plan import Plan


def check(made: Plan, given: Collection[str]) -> None:
    """Refuse flags among the `given` ones that this plan has no use for; raises UsageError."""
    on_gpus = all(point.hardware.device == "cuda" for point in made.cells)
    fields = fields_of(type(made.config)).values()
    # Workers on GPUs start from nothing, with the C library as the system has it.
    for field in (one.key for one in fields if one.flag.of == "cpu workers" and on_gpus):
        if field in given:
            raise UsageError(f"{flag(field)}: is of workers on CPUs, and all of these are on GPUs; leave it out")
    if "interleave" in given and made.config.interleave and _most_beside_each_other(made) < 2:
        raise UsageError(
            "--interleave: no two points of a framework are there to take turns; leave it out, or ask for more "
            "--world-sizes or --kinds"
        )


def _most_beside_each_other(made: Plan) -> int:
    """How many points could take turns if memory held them all."""
    families = Counter(
        frameworks.load(point.strategy).baseline
        for point in made.cells
        # Apart in any case: a whole CPU, and a training.
        if not point.hardware.cores and point.regime is None
    )
    return max(families.values(), default=0)
