"""What the model of a step must know of a network of neurons: its gradients, and how many of them come last. Pure.

`tail` is the share of the gradients that only the end of backward makes: next to nothing in convolutional networks
(their first layers are small), the embeddings of a transformer, whose backward is the last. Parameters of the
convolutional ones are the catalogue's (scaling/workloads/models.py; a test compares), those of BERT follow from
its shape (Devlin et al., arXiv:1810.04805: 30,522 tokens, 768 x 12 or 1,024 x 24).
"""

from __future__ import annotations

import re

from scaling.records.point import Record


class KnownModel(Record, frozen=True, kw_only=True):
    """A model: parameters, tensors among which they are divided, and the tail."""

    name: str
    parameters: int
    tail: float
    tensors: int
    pattern: str


KNOWN = (
    KnownModel(name="digits-cnn", parameters=813_546, tail=0.0004, tensors=16, pattern="digits"),
    KnownModel(name="resnet50", parameters=25_557_032, tail=0.0004, tensors=161, pattern=r"resnet-?50"),
    KnownModel(name="resnet101", parameters=44_549_160, tail=0.0002, tensors=314, pattern=r"resnet-?101"),
    KnownModel(name="resnet152", parameters=60_192_808, tail=0.0002, tensors=467, pattern=r"resnet-?152"),
    KnownModel(name="alexnet", parameters=61_100_840, tail=0.0004, tensors=16, pattern="alexnet"),
    KnownModel(name="vgg16", parameters=138_357_544, tail=0.0001, tensors=32, pattern=r"vgg-?16"),
    KnownModel(name="googlenet", parameters=6_998_552, tail=0.0014, tensors=116, pattern="googlenet"),
    KnownModel(
        name="inception_v3", parameters=23_834_568, tail=0.0001, tensors=284, pattern=r"inception[- _]?(v3|bn)"
    ),
    KnownModel(name="bert-base", parameters=110_000_000, tail=0.217, tensors=206, pattern=r"bert-?base"),
    KnownModel(name="bert-large", parameters=336_200_000, tail=0.095, tensors=398, pattern=r"bert-?large"),
    KnownModel(name="transformer-xl", parameters=285_000_000, tail=0.3, tensors=300, pattern=r"transformer-?xl"),
    KnownModel(
        name="transformer-big", parameters=213_000_000, tail=0.16, tensors=250, pattern=r"transformer-?big"
    ),
    KnownModel(name="gnmt", parameters=160_000_000, tail=0.2, tensors=80, pattern="gnmt"),
    KnownModel(name="llama-8b", parameters=8_030_000_000, tail=0.065, tensors=291, pattern=r"llama.*8b"),
    KnownModel(name="bart", parameters=406_300_000, tail=0.127, tensors=500, pattern="bart"),
)


def known_model(words: str) -> KnownModel | None:
    """The model that somebody's words name, None where it is not known."""
    return next((one for one in KNOWN if re.search(one.pattern, words.lower())), None)
