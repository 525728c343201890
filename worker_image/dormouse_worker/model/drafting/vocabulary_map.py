"""Which token of its model's each token of an EAGLE-3 head is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.eagle3_files import D2T, T2D
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.model.arrays import Ints


def read_targets(stored: Mapping[str, StoredTensor], vocab_size: int) -> Ints | None:
    """Return them, [Vd], of files whose shapes and types were checked; None = both vocabularies are the same.

    Raises ModelInvalid where they are none of the model's, where two are the same, or where both of its maps differ.
    """
    if D2T not in stored:
        return None
    added = _read(stored[D2T], "<i8")
    targets: Ints = np.arange(len(added)) + added
    _require(stored[D2T], added, (targets >= 0) & (targets < vocab_size), f"and the model has {vocab_size} tokens")
    is_known = np.zeros(vocab_size, dtype=np.bool_)
    is_known[targets] = True
    _require(stored[D2T], added, np.bincount(targets, minlength=vocab_size)[targets] == 1, "as another one does")
    if T2D in stored and (is_known != _read(stored[T2D], "u1").astype(np.bool_)).any():
        raise ModelInvalid(f"{stored[T2D].file}: t2d is of other tokens than d2t; copy the head again")
    return None if len(targets) == vocab_size and not added.any() else targets


def _require(tensor: StoredTensor, added: Ints, are_right: np.ndarray, what: str) -> None:
    if not are_right.all():
        place = int(np.argmin(are_right))
        raise ModelInvalid(
            f"{tensor.file}: d2t makes {place + int(added[place])} of the head's token {place}, {what}; copy the head "
            "again"
        )


def _read(tensor: StoredTensor, dtype: str) -> Ints:
    try:
        with tensor.file.open("rb") as stream:
            stream.seek(tensor.start)
            raw = stream.read(tensor.end - tensor.start)
    except OSError as error:
        raise ModelInvalid(f"{tensor.file}: cannot be read: {error}") from error
    if len(raw) != tensor.end - tensor.start:
        raise ModelInvalid(f"{tensor.file}: ended while it was read; copy the head again")
    return np.frombuffer(raw, dtype=dtype)
