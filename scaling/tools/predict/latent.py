"""Which constants a setting has, and what believing in them means: names, transformations, draws. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from scaling.tools.predict.model import Floats
from scaling.tools.predict.priors import Prior
from scaling.tools.predict.setting import Overlap, Setting

COMMON = ("window", "tax", "tax_devices", "tax_nodes", "jitter", "growth")
# Of devices that sleep and links that are shaped, what no published cluster tells.
EMULATED = {
    "fade": "fade.emulated", "alpha": "alpha.emulated",
    "tax": "tax.emulated", "tax_devices": "tax.emulated", "tax_nodes": "tax.emulated",
    "jitter": "straggling.emulated", "growth": "straggling.emulated",
}  # fmt: skip
SERVERS = ("servers_apart", "servers_beside", "servers_in_host")


def keys(setting: Setting) -> dict[str, str]:
    """The roles that constants have in the equations -> the names of their priors."""
    family = "servers" if setting.method in SERVERS else "ring"
    wires = "tcp" if setting.link in ("tcp", "tcp10", "unknown", "none") else "rdma"
    found = {name: name for name in COMMON} | {
        "bus": f"bus.{setting.bus}",
        "network": f"network.{setting.link}.{family}" if wires == "tcp" else f"network.{setting.link}",
        "fade": f"fade.{wires}",
        "alpha": f"alpha.{wires}",
        "hide": hidden(setting.overlap, emulated=setting.emulated),
        "wire": "wire",
    }
    if setting.link in ("none", "unknown"):
        found["network"] = "network.unknown"
    return found | (_emulated(setting, family) if setting.emulated else {})


def _emulated(setting: Setting, family: str) -> dict[str, str]:
    """What an emulation does by construction; servers, and who overlaps little, do as they do anywhere."""
    found = dict(EMULATED)
    if family == "ring" and setting.link == "tcp10":
        found["network"] = "network.emulated"
    return found


def hidden(overlap: Overlap, *, emulated: bool) -> str:
    """The name of what is believed of how much of an exchange hides."""
    return "hide.emulated" if emulated and overlap in ("ddp", "horovod") else f"hide.{overlap}"


def values(names: Mapping[str, str], priors: Mapping[str, Prior], z: Floats) -> dict[str, Floats]:
    """Standard normal draws (draws x constants) -> what the constants are, each a column of its own."""
    return {
        role: transformed(name, priors[name].mean + priors[name].sd * z[:, [index]])
        for index, (role, name) in enumerate(names.items())
    }


def transformed(name: str, normal: Floats) -> Floats:
    """From the scale on which a constant is normal to its own."""
    if name == "hide.serial":
        return np.zeros_like(normal)
    if name.startswith("hide."):
        return np.asarray(1 / (1 + np.exp(-normal)))
    return normal if name == "wire" else np.exp(normal)
