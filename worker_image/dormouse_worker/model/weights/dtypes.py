"""Which type a model computes in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.model.weights.reader import STORED_DTYPES

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_dtype(config: Any, settings: EngineSettings, stored: Mapping[str, StoredTensor]) -> torch.dtype:
    """Return what transformers would choose: the wanted type, the configuration's, the first one in the files."""
    named = getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None)
    if settings.dtype in DTYPES:
        return DTYPES[settings.dtype]
    if named is not None:
        dtype: torch.dtype = getattr(torch, named) if isinstance(named, str) else named
        return dtype
    in_files = (STORED_DTYPES.get(tensor.dtype) for tensor in stored.values())
    return next((dtype for dtype in in_files if dtype is not None and dtype.is_floating_point), torch.float32)
