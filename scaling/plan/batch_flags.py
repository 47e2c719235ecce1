"""What the flags of batches may say (`--batch-size` and those beside it). Pure."""

from __future__ import annotations

from scaling.errors import UsageError
from scaling.plan.config import SweepConfig


def validate(config: SweepConfig) -> None:
    """Refuse batches that contradict each other or the rule; raises UsageError naming the flag."""
    _one_batch_rule(config)
    _batch_sizes(config)


def _one_batch_rule(config: SweepConfig) -> None:
    if config.batch_size is not None and config.global_batch_size is not None:
        raise UsageError(
            "--batch-size and --global-batch-size: give one; "
            "the first fixes the batch per device (weak scaling), the second the sum (strong scaling)"
        )
    if config.batch_rule == "strong" and config.global_batch_size is None:
        raise UsageError("--batch-rule strong: fixes the batch over all devices; give it with --global-batch-size")
    if config.global_batch_size is not None and config.rule != "strong":
        per = "device" if config.rule == "weak" else "node"
        raise UsageError(
            f"--global-batch-size {config.global_batch_size} with --batch-rule {config.rule}: that rule fixes the "
            f"batch per {per}; give it with --batch-size"
        )


def ascending(sizes: tuple[int, ...], flag: str, example: str, one: str) -> None:
    """Refuse a list of sizes that is empty, out of order or has a size below 1."""
    text = ",".join(map(str, sizes))
    if not sizes:
        raise UsageError(f"{flag}: empty; write for example {example}")
    if sizes[0] < 1:
        raise UsageError(f"{flag} {text}: {one} is at least 1")
    if list(sizes) != sorted(set(sizes)):
        raise UsageError(f"{flag} {text}: not ascending; write {','.join(map(str, sorted(set(sizes))))}")


def _batch_sizes(config: SweepConfig) -> None:
    """Refuse a sweep over batches beside another batch, or under a rule that divides it."""
    if config.batch_sizes is None:
        return
    ascending(config.batch_sizes, "--batch-sizes", "16,32,64", "a batch")
    for field in ("batch_size", "global_batch_size"):
        if getattr(config, field) is not None:
            raise UsageError(
                f"--batch-sizes and --{field.replace('_', '-')}: give one; the first measures each of its batches"
            )
    if config.rule != "weak":
        text = ",".join(map(str, config.batch_sizes))
        raise UsageError(
            f"--batch-sizes {text} with --batch-rule {config.rule}: sweeps the batch of a device (weak); leave "
            "the rule out"
        )
