"""images/s of an `exchange` point of torch:gloo at 2 ranks against a bare DDP script of the same model, data,
batch and threads: at least 0.99. It is `tests.bench.strategies` for one strategy, with more rounds.
"""

from __future__ import annotations

import os

from tests.bench.strategies import compare


def main() -> None:
    """Print both rates and their ratio with its interval over the rounds."""
    compare("torch:gloo", rounds=int(os.environ.get("ROUNDS", "10")))


if __name__ == "__main__":
    main()
