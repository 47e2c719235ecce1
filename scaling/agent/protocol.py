"""Report what a revision's workers understand, from within that revision.

python scaling/agent/protocol.py STRATEGY...      (started by an agent only, with that revision on PYTHONPATH)

Only the standard library is imported before `main` removes this revision from the path.
"""

from __future__ import annotations

import os
import sys


def main(strategies: list[str]) -> None:
    """Print as JSON the package found, the hash of its messages, missing strategies, files of outside ones."""
    del sys.path[0]  # the folder of this file
    stdout = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # strategies may print
    import hashlib
    import json

    import msgspec

    import scaling
    from scaling import frameworks
    from scaling.records.events import Heard
    from scaling.records.task import Command, ForkRequest, Task

    lacking, files = {}, {}
    for name in strategies:
        try:
            frameworks.load(name)
            module = name.partition(":")[0]
            if "." in module:
                files[name] = str(sys.modules[module].__file__)
        except Exception as error:
            lacking[name] = str(error)
    _, parts = msgspec.json.schema_components((Task, Command, Heard, ForkRequest))
    parts["Task"]["properties"].pop("code", None)  # for agents alone
    told = json.dumps(_bare(parts), sort_keys=True).encode()
    found = {
        "package": str(scaling.__path__[0]),
        "version": scaling.__version__,
        "protocol": hashlib.sha256(told).hexdigest()[:12],
        "lacking": lacking,
        "files": files,
    }
    os.write(stdout, json.dumps(found).encode())


def _bare(of: object) -> object:
    if isinstance(of, dict):
        return {key: _bare(value) for key, value in of.items() if key not in ("description", "title")}
    return [_bare(one) for one in of] if isinstance(of, list) else of


if __name__ == "__main__":
    main(sys.argv[1:])
