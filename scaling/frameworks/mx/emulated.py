"""The MXNet strategies on emulated devices: real gradients, real exchange, and sleeps in place of computing.

The emulated block has the model's parameters, divided by the point's `shrink`, in the model's order. On a device
MXNet's engine starts the exchange of a gradient when backward has made it, and a layer when its weights have been
pulled. Here the loop sleeps for a layer's backward and only then hands its gradients to the Trainer, and waits for
its weights before it sleeps for its forward pass. All elements of a rank's gradients have one value, other in each
rank and step: what an exchange leaves out or adds twice shows in the digest. The update is plain SGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from scaling.frameworks.mx.library import mx
from scaling.frameworks.mx.rank import MxnetRank
from scaling.tools.emulated.device import EmulatedDevice, value
from scaling.tools.emulated.layers import Span
from scaling.workloads.specs import Recipe

# Gluon's trainers leave out such parameters.
LEFT_OUT = SimpleNamespace(grad_req="null")


class EmulatedCompute:
    """The parameters of emulated devices, and their time, which is the same on all of a process."""

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
        """None is fed."""
        return self._task.point.workload.batch_size

    def begin(self, _parameters: dict[str, mx.gluon.Parameter], trainer: mx.gluon.Trainer) -> None:
        """The first step makes what trainers make late."""
        self._trainer = trainer
        # The model's, in its order.
        self._parameters = trainer._params
        numbers = iter(range(len(self._parameters)))
        self._numbered = [(span, [next(numbers) for _ in span.sizes]) for span in self._device.spans]
        # What the Trainer sees while one gradient is ready.
        self._ready = [
            [each if other is each else LEFT_OUT for other in self._parameters] for each in self._parameters
        ]
        trainer.step(1, ignore_stale_grad=True)
        mx.nd.waitall()
        self._timeline.meet()

    def differentiate(self) -> int:
        """As long as the profile says, with each gradient's exchange begun when it is there."""
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
        """The gradients are exchanged or on their way: what updates where they arrive is left."""
        self._trainer._params = self._parameters
        self._trainer._update()

    def keep_up(self) -> None:
        """Nothing is behind but the exchange, which the next step waits for."""
        self._steps += 1

    def sync(self) -> None:
        """Wait for the exchange and the device."""
        self._timeline.ask()
        mx.nd.waitall()
        self._timeline.granted()
        self._timeline.finish()

    def loss(self) -> None:
        """Nothing is learnt."""

    def _wait_for(self, numbers: list[int]) -> None:
        """For the weights that the last step's exchange brings, on all devices."""
        self._timeline.ask()
        for number in numbers:
            for weight in self._parameters[number].list_data():
                weight.wait_to_read()
        self._timeline.granted()

    def _exchange(self, number: int, filled_with: float) -> None:
        """Of one parameter's gradient, which has just been computed."""
        of = self._parameters[number]
        for index, (weight, gradient) in enumerate(zip(of.list_data(), of.list_grad(), strict=True)):
            gradient[:] = filled_with + index
            # As backward leaves it: trainers pass stale gradients over.
            weight._fresh_grad = True
        self._trainer._params = self._ready[number]
        self._trainer._allreduce_grads()


def _net(spans: Sequence[Span], contexts: Sequence[mx.Context]) -> mx.gluon.Block:
    """A block per span."""
    net = mx.gluon.nn.Sequential()
    for span in spans:
        block = mx.gluon.nn.Sequential()
        for index, size in enumerate(span.sizes):
            name = f"weight{index}"
            setattr(block, name, block.params.get(name, shape=(size,), init="zeros"))
        net.add(block)
    net.initialize(ctx=contexts)
    return net
