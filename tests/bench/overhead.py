"""images/s of the project's workers of torch:gloo at 2 ranks against a bare DDP script of the same model, data,
batch and threads, taking turns with them: at least 0.99, by an interval of 1 % to either side or less. It is
`tests.bench.strategies` for one strategy, with more starts.
"""

from __future__ import annotations

import os

from tests.bench.strategies import HEAD, compare
from tests.bench.turns import say


def main() -> None:
    say(HEAD)
    compare("torch:gloo", starts=int(os.environ.get("STARTS", "22")))


if __name__ == "__main__":
    main()
