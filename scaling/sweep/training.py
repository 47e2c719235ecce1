"""What ranks are told of a training to an accuracy: an epoch, then what is held out, until the target is reached.
Pure."""

from __future__ import annotations

from scaling.analysis import accuracy
from scaling.records.events import Failed, Ready
from scaling.records.task import Command, Evaluate, Train
from scaling.sweep.state import PointState, failing
from scaling.workloads import schedule


def compared(state: PointState) -> PointState:
    """All ranks are ready; a failure where they do not have as many samples, since their hosts' data differ."""
    counts = {rank.task.hosts[rank.task.rank]: _samples(rank.ready) for rank in state.ranks}
    if len(set(counts.values())) > 1:
        had = ", ".join(f"{host} has {count:,}" for host, count in counts.items())
        state = failing(state, Failed(cause="error", message=f"hosts differ in samples to train on: {had}"))
    return state


def _samples(ready: Ready | None) -> int:
    return ready.training_samples if ready else 0


def decide(state: PointState) -> Command | None:
    """The next command once every rank has done the last one; None when it is over."""
    regime = state.point.regime
    assert regime is not None
    if isinstance(state.command, Train):
        return Evaluate(number=state.command.number)
    done = len(state.ranks[0].evaluations)
    if done == regime.epochs or (done and _is_reached(state, done - 1)):
        return None
    return Train(number=done, steps=_steps(state, done))


def _is_reached(state: PointState, number: int) -> bool:
    target = state.point.regime.target_top1 if state.point.regime else None
    return target is not None and accuracy.top1(rank.evaluations[number] for rank in state.ranks) >= target


def _steps(state: PointState, number: int) -> int:
    """Of an epoch, at least one: a batch may hold several epochs of few samples."""
    point, samples = state.point, _samples(state.ranks[0].ready)
    before, after = (
        schedule.steps_before(
            epoch, samples=samples, world_size=point.world_size, batch_size=point.workload.batch_size
        )
        for epoch in (number, number + 1)
    )
    return max(1, after - before)
