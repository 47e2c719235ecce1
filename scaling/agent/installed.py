"""Report what an interpreter has installed for a framework. No framework is imported.

python -m scaling.agent.installed FRAMEWORK STRATEGY...      (started by an agent that runs in another one)
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import msgspec

from scaling import frameworks
from scaling.agent import strategies
from scaling.hosts import info
from scaling.records.host import Installed

NEEDED = ("numpy", "psutil", "pynvml")


def main(arguments: Sequence[str]) -> int:
    """Print an `Installed` as JSON and return 0; print a line and return 1 if no worker can run here."""
    name, *names = arguments
    framework = frameworks.FRAMEWORKS[name]
    if absent := [name for name in NEEDED if find_spec(name) is None]:
        sys.stderr.write(f"No module named {absent[0]!r}\n")
        return 1
    lacking = strategies.lacking_here(names)
    answer = Installed(
        python=platform.python_version(),
        versions=info.versions(framework.distributions),
        missing=lacking.anywhere,
        missing_on_cuda=lacking.on_cuda,
        name_addresses=lacking.name_addresses,
        cuda=framework.built_for_cuda(),
        compile_lacks=framework.compiler_lacks(os.environ),
    )
    sys.stdout.write(msgspec.json.encode(answer).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
