"""What transformers found while it put files into a module: collected instead of printed, and refused by name."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import modeling_utils

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.model.slim_imports import replaced
from dormouse_worker.model.weights.strangers import Places

Stored = Mapping[str, StoredTensor]


@contextmanager
def collected() -> Iterator[list[Any]]:
    """Let `from_pretrained` put its findings into the list, and not raise 'look at the above report'."""
    findings: list[Any] = []

    def keep(*, loading_info: Any, **_: Any) -> None:
        findings.append(loading_info)

    with replaced(modeling_utils, "log_state_dict_report", keep):
        yield findings


def judge(found: Any, module: Any, path: Path, stored: Stored) -> None:
    """Raise ModelInvalid, naming a tensor, unless all tensors went to their places and all places are full.

    `found` is transformers' LoadStateDictInfo about this module.
    """
    for target, details in sorted(found.conversion_errors.items()):
        raise ModelInvalid(f"{path}: the tensors for {target} cannot be converted: {_explain(details, stored)}")
    for name, shape, wanted in sorted(found.mismatched_keys):
        raise wrong_shape(name, stored[name].file if name in stored else path, tuple(shape), tuple(wanted))
    Places(module).check_strangers(found.unexpected_keys, stored)
    missing = sorted(found.missing_keys)
    if missing:  # transformers would fill them with random numbers
        names = ", ".join(missing[:3])
        raise ModelInvalid(f"{path}: {len(missing)} weights that config.json asks for are missing: {names}")


def wrong_shape(name: str, file: Path, shape: tuple[int, ...], wanted: tuple[int, ...]) -> ModelInvalid:
    """Return the error for a tensor that is not as large as config.json says."""
    return ModelInvalid(
        f"{file}: tensor {name} is {list(shape)}, and config.json asks for {list(wanted)}; copy the config.json that "
        "belongs to these weights"
    )


def _explain(details: str, stored: Stored) -> str:
    lines = [line.strip() for line in details.splitlines() if line.strip()]
    told = next((line for line in lines if re.match(r"\w*(Error|Exception): ", line)), lines[-1])
    return "; ".join([told, *_odd_ones(stored)])


def _odd_ones(stored: Stored) -> Iterator[str]:
    """Yield the first tensor whose shape differs from most of those that have its name but for their numbers."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in stored:
        alike[re.sub(r"\.\d+\.", ".*.", name)].append(name)
    for names in alike.values():
        (usual, count), *others = Counter(stored[name].shape for name in names).most_common()
        if others and count > others[0][1]:
            name = next(name for name in sorted(names) if stored[name].shape != usual)
            yield f"{stored[name].file}: {name} is {list(stored[name].shape)} where others are {list(usual)}"
            return
