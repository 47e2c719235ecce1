"""What pyroute2's tbf lacks: rates above 34 Gb/s, which need 64 bits of bytes/s, and a burst in bytes.

Without the latter the burst is a time in microseconds, too coarse at high rates and too long at low ones.
Imported only where a link is shaped, as pyroute2 may be missing.
"""

from __future__ import annotations

from typing import Any

from pyroute2.netlink.rtnl import TC_H_ROOT, tcmsg  # type: ignore[import-untyped, unused-ignore]
from pyroute2.netlink.rtnl.tcmsg import sched_tbf  # type: ignore[import-untyped, unused-ignore]

_MOST_IN_32_BITS = 0xFFFFFFFF


class Tbf:
    """A discipline as `IPRoute.tc` wants it, in place of pyroute2's own; `rate` in bytes/s, the rest in bytes."""

    parent = TC_H_ROOT

    class options(sched_tbf.options):  # type: ignore[misc, unused-ignore]
        """The attributes that the kernel knows (linux/pkt_sched.h)."""

        nla_map = (
            *sched_tbf.options.nla_map,
            ("TCA_TBF_RATE64", "uint64"),
            ("TCA_TBF_PRATE64", "uint64"),
            ("TCA_TBF_BURST", "uint32"),
        )

    @staticmethod
    def fix_request(request: dict[str, Any]) -> None:
        """`rate` is an attribute of all disciplines too, of another kind."""
        request.pop("rate", None)

    @staticmethod
    def get_parameters(wanted: dict[str, Any]) -> dict[str, Any]:
        """The attributes of a request."""
        rate, burst = int(wanted["rate"]), int(wanted["burst"])
        parameters = {"rate": min(rate, _MOST_IN_32_BITS), "mtu": 0, "buffer": 0, "limit": int(wanted["limit"])}
        attributes = [["TCA_TBF_PARMS", parameters], ["TCA_TBF_RTAB", True], ["TCA_TBF_BURST", burst]]
        return {"attrs": [*attributes, *([["TCA_TBF_RATE64", rate]] if rate > _MOST_IN_32_BITS else [])]}


def register() -> None:
    """Let `IPRoute.tc(..., "tbf", ...)` use it, in this process."""
    tcmsg.plugins["tbf"] = Tbf
