"""What the flags of a training to an accuracy may say (`--epochs` and those beside it). Pure."""

from __future__ import annotations

from collections.abc import Collection

from scaling.errors import UsageError
from scaling.plan.config import SweepConfig

# Flags that say nothing without --epochs.
ONLY_WITH_EPOCHS = (
    "target_top1", "lr", "lr_scale", "warmup_epochs", "lr_steps", "augment_epochs", "weights", "seeds",
    "train_samples", "test_samples", "save_weights",
)  # fmt: skip
# Flags of rates, which a training to an accuracy does not measure.
OF_RATES = ("target_ci", "baseline_device")
# Flags of how rates are measured, which would change nothing. A run that goes on has them settled.
OF_MEASURING = ("kinds", "windows", "window_s", "soak_s", "interleave", "max_rounds")
# Formats that weights are written in (workloads/weights_file.py, which takes NumPy).
SAVED = (".npz", ".safetensors")
MAX_SEED = 1 << 32


def validate(config: SweepConfig) -> None:
    """Refuse values that no launch could run; raises UsageError naming the flag."""
    if config.epochs is None:
        if "train" in (config.kinds or ()):
            raise UsageError("--kinds train: is what --epochs N asks for; give that instead")
        for field in ONLY_WITH_EPOCHS:
            if getattr(config, field) is not None:
                raise UsageError(f"{_flag(field)}: is of a training to an accuracy; add --epochs N")
        return
    _with_epochs(config)
    _numbers(config)
    _epochs(config)
    _saving(config)


def check_flags(config: SweepConfig, given: Collection[str]) -> None:
    """Refuse flags that were given and would change nothing; raises UsageError."""
    for field in OF_MEASURING if config.epochs is not None else ():
        if field in given and getattr(config, field) is not False:
            raise UsageError(
                f"{_flag(field)} with --epochs: a training to an accuracy has whole epochs alone, one training "
                "after the other; leave it out"
            )


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def _saving(config: SweepConfig) -> None:
    """Refuse a file that could not be read again."""
    path = config.save_weights
    if path is not None and not path.endswith(SAVED):
        raise UsageError(f"--save-weights {path}: not one of {', '.join(SAVED)}")


def _with_epochs(config: SweepConfig) -> None:
    """Refuse what is of another kind of run."""
    # A run that goes on knows its one round.
    if config.rounds not in (None, 1):
        raise UsageError(f"--rounds {config.rounds} with --epochs: a training is repeated by --seeds 0,1,2")
    for field in OF_RATES:
        if getattr(config, field) is not None:
            raise UsageError(
                f"{_flag(field)} with --epochs: a training to an accuracy measures no rates by rounds; leave "
                "it out, or run both"
            )
    if config.has_passes or config.trace:
        given = "--pass" if config.has_passes else "--trace"
        raise UsageError(f"{given} with --epochs: a training to an accuracy has whole steps alone; leave it out")


def _numbers(config: SweepConfig) -> None:
    least_of = {"epochs": 1, "warmup_epochs": 0, "augment_epochs": 0, "train_samples": 1, "test_samples": 1}
    for field, least in least_of.items():
        value = getattr(config, field)
        if value is not None and value < least:
            raise UsageError(f"{_flag(field)} {value}: at least {least}")
    if config.lr is not None and not 0 < config.lr < float("inf"):
        raise UsageError(f"--lr {config.lr:g}: must be a number above 0")
    if config.target_top1 is not None and not 1 <= config.target_top1 <= 100:
        raise UsageError(f"--target-top1 {config.target_top1:g}: in percent, from 1 to 100; write for example 98")
    seeds = config.seeds
    if seeds is not None and (not seeds or len(set(seeds)) < len(seeds) or not all(map(_is_seed, seeds))):
        raise UsageError(
            f"--seeds {','.join(map(str, seeds))}: each once, from 0 to {MAX_SEED - 1}; write for example 0,1"
        )


def _is_seed(seed: int) -> bool:
    return 0 <= seed < MAX_SEED


def _epochs(config: SweepConfig) -> None:
    """Refuse what lies beyond the last epoch."""
    assert config.epochs is not None
    for field in ("warmup_epochs", "augment_epochs"):
        if (getattr(config, field) or 0) > config.epochs:
            raise UsageError(f"{_flag(field)} {getattr(config, field)}: of --epochs {config.epochs}, at most all")
    steps = config.lr_steps or ()
    if list(steps) != sorted(set(steps)) or not all(0 < step < config.epochs for step in steps):
        raise UsageError(
            f"--lr-steps {','.join(map(str, steps))}: ascending epochs between 0 and --epochs {config.epochs}"
        )
    if early := [step for step in steps if step < (config.warmup_epochs or 0)]:
        raise UsageError(
            f"--lr-steps {early[0]}: within --warmup-epochs {config.warmup_epochs}, while the rate still grows; "
            "take a later one"
        )
    if config.lr_scale == ():
        raise UsageError("--lr-scale: empty; write for example linear or linear,none")
