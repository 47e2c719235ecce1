"""Extensions of pyroute2's tbf: rates above 34 Gb/s (64 bits of bytes/s), and a burst in bytes.

Import this only to shape a link, because pyroute2 may be missing.
"""

from __future__ import annotations

from typing import Any

from pyroute2.netlink.rtnl import TC_H_ROOT, tcmsg  # type: ignore[import-untyped, unused-ignore]
from pyroute2.netlink.rtnl.tcmsg import sched_tbf  # type: ignore[import-untyped, unused-ignore]

_MOST_IN_32_BITS = 0xFFFFFFFF


class Tbf:
    """A discipline for `IPRoute.tc`; `rate` is in bytes/s, sizes in bytes."""

    parent = TC_H_ROOT

    class options(sched_tbf.options):  # type: ignore[misc, unused-ignore]
        nla_map = (
            *sched_tbf.options.nla_map,
            ("TCA_TBF_RATE64", "uint64"),
            ("TCA_TBF_PRATE64", "uint64"),
            ("TCA_TBF_BURST", "uint32"),
        )

    @staticmethod
    def fix_request(request: dict[str, Any]) -> None:
        """Remove `rate`, which is also an attribute of all disciplines, of another type."""
        request.pop("rate", None)

    @staticmethod
    def get_parameters(wanted: dict[str, Any]) -> dict[str, Any]:
        rate, burst = int(wanted["rate"]), int(wanted["burst"])
        parameters = {"rate": min(rate, _MOST_IN_32_BITS), "mtu": 0, "buffer": 0, "limit": int(wanted["limit"])}
        attributes = [["TCA_TBF_PARMS", parameters], ["TCA_TBF_RTAB", True], ["TCA_TBF_BURST", burst]]
        return {"attrs": [*attributes, *([["TCA_TBF_RATE64", rate]] if rate > _MOST_IN_32_BITS else [])]}


def register() -> None:
    """Register the discipline for `IPRoute.tc(..., "tbf", ...)` in this process."""
    tcmsg.plugins["tbf"] = Tbf
