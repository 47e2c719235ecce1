"""What numbers of a record can be. Anybody may have written the file: a value outside is an error of its line, so
that nothing behind the decoder needs to doubt a number."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

# Exact as a float, too.
MOST = 2**53
Count = Annotated[int, Meta(ge=0, le=MOST)]
# Ranks, devices, nodes, rounds, samples of a batch.
Size = Annotated[int, Meta(ge=1, le=2**31)]
Index = Annotated[int, Meta(ge=0, le=2**31)]
# A span, or a moment of CLOCK_MONOTONIC.
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
# Up to the year 9999, the last that has a date.
UnixSeconds = Annotated[float, Meta(ge=0, le=253_402_300_799)]
# Rates, watts, per cent, joules.
Amount = Annotated[float, Meta(ge=0, le=1e18)]
# What a canary took, of which no rate is formed.
Taken = Annotated[float, Meta(ge=0, le=1e300)]
# By what something is divided or multiplied.
Factor = Annotated[float, Meta(ge=1e-6, le=1e6)]
# Of either sign: losses, and differences of counters that some kernels set back.
Signed = Annotated[float, Meta(ge=-1e39, le=1e39)]
# The resolution of CLOCK_MONOTONIC.
LEAST_S = 1e-9
