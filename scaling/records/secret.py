"""Names of variables that hold secrets. Neither records nor archives have their values."""

from __future__ import annotations

import re

# NCCL_IB_PKEY is a partition of InfiniBand.
SECRET = re.compile(r"TOKEN|SECRET|PASS(?:W|PHRASE)|CREDENTIAL|(?<!_P)KEY|(?<![A-Z])AUTH(?![A-Z])", re.IGNORECASE)
# `//user:password@` in an address.
USERINFO = re.compile(r"//[^/@\s]*@")
