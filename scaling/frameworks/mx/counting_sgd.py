"""The optimiser with which a server counts the pushes of an asynchronous mode.

Workers send it to the servers by pickle. A server loads this file while its own `import mxnet` is under way, when
Gluon is not there yet: it imports nothing of the loop.
"""

from __future__ import annotations

from typing import Any

from scaling.frameworks.mx.library import mx


class CountingSGD(mx.optimizer.SGD):  # type: ignore[misc]
    """SGD with these options that adds 1 to the weight of key `counter` with each push to it."""

    def __init__(self, counter: int, options: dict[str, Any]) -> None:
        super().__init__(**options)
        self._made_of = counter, options

    def __reduce__(self) -> tuple[type[CountingSGD], tuple[int, dict[str, Any]]]:
        """Made anew where it arrives."""
        return CountingSGD, self._made_of

    def update_multi_precision(
        self, index: Any, weight: mx.nd.NDArray | list[mx.nd.NDArray], grad: Any, state: Any
    ) -> None:
        """A server updates one key at a time, as a sequence of one or, without aggregation, as it is."""
        counter = self._made_of[0]
        if index in (counter, (counter,), [counter]):
            for each in weight if isinstance(weight, list | tuple) else [weight]:
                each += 1  # noqa: PLW2901  in place
        else:
            super().update_multi_precision(index, weight, grad, state)
