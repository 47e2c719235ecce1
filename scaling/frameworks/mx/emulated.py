"""MXNet's strategies on emulated devices: real gradients and exchange, and sleeps for the compute.

The emulated block has the model's parameters, divided by the point's `shrink`, in the model's order. The loop does
what MXNet's engine does on a device:

* It sleeps for a layer's backward pass and then hands the layer's gradients to the Trainer.
* It waits for a layer's weights before it sleeps for the layer's forward pass.

All elements of a gradient have one value, different for each rank and step. So the digest shows what an exchange
leaves out or adds twice. The update is plain SGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from scaling.frameworks.mx.library import mx
from scaling.frameworks.mx.rank import MxnetRank
from scaling.tools.emulated.device import EmulatedDevice, value
from scaling.tools.emulated.layers import Span
from scaling.workloads.specs import Recipe

# Gluon's trainers skip such parameters.
LEFT_OUT = SimpleNamespace(grad_req="null")


class EmulatedCompute:
    """The parameters of emulated devices, and their time, which is the same on all devices of a process."""

    def __init__(self, rank: MxnetRank) -> None:
        self._task, self._contexts = rank.task, rank.contexts
        # Nothing is learnt.
        self.recipe = Recipe(rate=rank.spec.recipe.rate, momentum=0.0)
        self._device = EmulatedDevice(rank.task.point)
        self._timeline = self._device.timeline
        self._steps = 0
        self.device_name = self._device.name
        self.net = _net(self._device.spans, rank.contexts)

    def batch_size(self) -> int:
        return self._task.point.workload.batch_size

    def begin(self, _parameters: dict[str, mx.gluon.Parameter], trainer: mx.gluon.Trainer) -> None:
        """Make one step, with all that trainers create late."""
        self._trainer = trainer
        # In the model's order.
        self._parameters = trainer._params
        numbers = iter(range(len(self._parameters)))
        self._numbered = [(span, [next(numbers) for _ in span.sizes]) for span in self._device.spans]
        # For each gradient, what the Trainer sees while that one is ready.
        self._ready = [
            [each if other is each else LEFT_OUT for other in self._parameters] for each in self._parameters
        ]
        trainer.step(1, ignore_stale_grad=True)
        mx.nd.waitall()
        self._timeline.meet()

    def differentiate(self) -> int:
        """Sleep as the profile says. The exchange of each gradient begins when it is ready."""
        self._timeline.begin(self._device.rate.step_s)
        for span, numbers in self._numbered:
            self._wait_for(numbers)
            self._timeline.spend(span.forward_s)
        for span, numbers in reversed(self._numbered):
            self._timeline.spend(span.backward_s)
            for number in reversed(numbers):
                self._exchange(number, value(self._task.rank, self._steps))
        return self._task.point.workload.batch_size * len(self._contexts)

    def update(self) -> None:
        """Update in this process, if the Trainer does so. The exchange has begun already."""
        self._trainer._params = self._parameters
        self._trainer._update()

    def keep_up(self) -> None:
        """Count the step. The next step waits for the exchange."""
        self._steps += 1

    def sync(self) -> None:
        self._timeline.ask()
        mx.nd.waitall()
        self._timeline.granted()
        self._timeline.finish()

    def loss(self) -> None:
        """Return None: nothing is learnt."""

    def _wait_for(self, numbers: list[int]) -> None:
        """Wait for the weights of the last step's exchange, on all devices."""
        self._timeline.ask()
        for number in numbers:
            for weight in self._parameters[number].list_data():
                weight.wait_to_read()
        self._timeline.granted()

    def _exchange(self, number: int, filled_with: float) -> None:
        of = self._parameters[number]
        for index, (weight, gradient) in enumerate(zip(of.list_data(), of.list_grad(), strict=True)):
            gradient[:] = filled_with + index
            # Set by backward: trainers skip stale gradients.
            weight._fresh_grad = True
        self._trainer._params = self._ready[number]
        self._trainer._allreduce_grads()


def _net(spans: Sequence[Span], contexts: Sequence[mx.Context]) -> mx.gluon.Block:
    net = mx.gluon.nn.Sequential()
    for span in spans:
        block = mx.gluon.nn.Sequential()
        for index, size in enumerate(span.sizes):
            name = f"weight{index}"
            setattr(block, name, block.params.get(name, shape=(size,), init="zeros"))
        net.add(block)
    net.initialize(ctx=contexts)
    return net
