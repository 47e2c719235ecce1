"""What models are trained on: the catalogue, which data fits which model, and where it lies here.

No framework, and no NumPy until files are opened: agents and the plan import this.
"""

from __future__ import annotations

from scaling.errors import UsageError, near
from scaling.workloads.data.catalogue import CATALOGUE
from scaling.workloads.data.places import locate
from scaling.workloads.data.specs import TRAIN, Augment, DataSpec, Gives, Split
from scaling.workloads.specs import Binary, Classes, Images, ModelSpec

__all__ = [
    "CATALOGUE",
    "TRAIN",
    "Augment",
    "DataSpec",
    "Split",
    "check_classes",
    "check_part",
    "fits",
    "locate",
    "spec",
]
_WORDS: dict[Gives, str] = {"images": "images", "reviews": "labelled reviews", "tokens": "rows of tokens"}


def spec(name: str) -> DataSpec:
    """The description of a set; raises UsageError with the near match."""
    if name not in CATALOGUE:
        raise UsageError(f"--data {name}: unknown; {near(name, CATALOGUE)}")
    return CATALOGUE[name]


def fits(name: str, model: ModelSpec) -> DataSpec:
    """The description of data that a model can be trained on; raises UsageError where it cannot."""
    found = spec(name)
    if not _suits(found, model):
        others = ", ".join(one.name for one in CATALOGUE.values() if _suits(one, model))
        raise UsageError(
            f"--data {name}: has {_WORDS[found.gives]}, --model {model.name} takes {_WORDS[_takes(model)]}; "
            f"there are {others}"
        )
    if isinstance(model.target, Classes):
        check_classes(name, found.classes or 0, model.target.count)
    if isinstance(model.input, Images) and found.format == "cifar" and found.channels > model.input.channels:
        raise UsageError(
            f"--data {name}: has {found.channels} channels, --model {model.name} takes {model.input.channels}"
        )
    return found


def check_classes(name: str, count: int, known: int) -> None:
    """Refuse data with more classes than the `known` ones of the model: their labels would be out of range."""
    if count <= known:
        return
    clutter = ", the last of them 257.clutter" if name == "caltech256" else ""
    raise UsageError(
        f"--data {name}: has {count} classes{clutter}; the model has {known}, so that labels from {known} on are "
        "out of range"
    )


def check_part(name: str, split: Split, wanted: int, found: int | None) -> None:
    """Refuse more samples of a split than the `found` ones; nothing where nobody knows yet how many there are."""
    if found is not None and wanted > found:
        raise UsageError(
            f"--{split}-samples {wanted}: --data {name} has {found:,} in its {split} split; take fewer"
        )


def _takes(model: ModelSpec) -> Gives:
    if isinstance(model.input, Images):
        return "images"
    return "reviews" if isinstance(model.target, Binary) else "tokens"


def _suits(found: DataSpec, model: ModelSpec) -> bool:
    """Made tokens can have any label."""
    wanted = _takes(model)
    return found.gives == wanted or (found.name == "synthetic-tokens" and wanted == "reviews")
