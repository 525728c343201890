"""What config.json says of a sequence classifier's head: its labels, and what turns its numbers into answers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from dormouse_worker.common.errors import ModelInvalid

Activation = Literal["none", "sigmoid", "softmax"]
SEQUENCE_CLASSIFIER = "ForSequenceClassification"  # how such an architecture's name ends
MAX_LABELS = 4096
MAX_LABELS_BYTES = 256 << 10  # of all together: each answer tells them, beside its numbers
_DEFAULT_LABELS = 2  # transformers' own, where config.json names none
# What sentence-transformers writes of a cross-encoder, in its newer files and in older ones.
_NAMED: Mapping[str, Activation] = MappingProxyType(
    {
        "torch.nn.modules.activation.Sigmoid": "sigmoid",
        "torch.nn.modules.activation.Softmax": "softmax",
        "torch.nn.modules.linear.Identity": "none",
    }
)


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """A head by the files."""

    labels: tuple[str, ...]
    activation: Activation


def is_classifier(config: Mapping[str, Any]) -> bool:
    """Return whether the architecture has such a head."""
    return any(str(name).endswith(SEQUENCE_CLASSIFIER) for name in config.get("architectures") or ())


def read_head(path: Path, config: Mapping[str, Any]) -> HeadFiles:
    """Return what the head of the model at this path is. Raises ModelInvalid for what is not known."""
    labels = _labels(path, config)
    return HeadFiles(labels, _named(path, config) or _by_kind(config.get("problem_type"), len(labels)))


def _labels(path: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return them in the order of the head's numbers."""
    said = config.get("id2label")
    if said is None:
        count = config.get("num_labels", _DEFAULT_LABELS)
        said = (
            {number: f"LABEL_{number}" for number in range(count)}
            if type(count) is int and 0 < count <= MAX_LABELS
            else {}
        )
    try:
        labels = {int(place): str(label) for place, label in said.items()}
        size = sum(len(label.encode()) for label in labels.values())
    except (AttributeError, TypeError, ValueError) as error:
        raise _odd(path, f"id2label is {str(said)[:80]!r}; numbers and labels are needed") from error
    if not 1 <= len(labels) <= MAX_LABELS or sorted(labels) != list(range(len(labels))):
        raise _odd(path, f"id2label has {len(labels)} labels; 1 to {MAX_LABELS} are needed, numbered from 0 on")
    if size > MAX_LABELS_BYTES:
        raise _odd(path, f"the labels of id2label have {size} bytes; {MAX_LABELS_BYTES} are the most")
    return tuple(labels[place] for place in range(len(labels)))


def _named(path: Path, config: Mapping[str, Any]) -> Activation | None:
    """Return what sentence-transformers wrote, if it did."""
    newer = config.get("sentence_transformers")
    name = newer.get("activation_fn") if isinstance(newer, Mapping) else None
    name = name or config.get("sbert_ce_default_activation_function")
    if name is not None and (not isinstance(name, str) or name not in _NAMED):
        raise _odd(path, f"the activation function is {name!r}; known are {', '.join(_NAMED)}")
    return _NAMED.get(name) if name is not None else None


def _by_kind(kind: object, num_labels: int) -> Activation:
    """Return what transformers' pipeline for classifying applies."""
    if kind == "regression":
        return "none"
    return "sigmoid" if kind == "multi_label_classification" or num_labels == 1 else "softmax"


def _odd(path: Path, why: str) -> ModelInvalid:
    return ModelInvalid(f"{path / 'config.json'}: {why}; copy config.json again")
