"""Maps, attention and norms in float32, for processors that do not multiply numbers of 16 bits themselves.

There torch's bfloat16 takes five times as long as its float32: 20.6 s of a core beside 3.8 for a picture of 512 × 512
(SmolVLM-256M's shape, AVX2). Weights stay as they are kept; each is made wider for its operation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dormouse_worker.model.operations import STRICT
from dormouse_worker.model.processors import CPUINFO, multiply_bfloat16


class Widened(TorchFunctionMode):
    """Widens what such operations take, in the thread that entered it."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function not in STRICT:
            return function(*args, **(kwargs or {}))
        wide = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return function(*map(_wide, args), **wide)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def is_better_widened(device: torch.device, dtype: torch.dtype, cpuinfo: Path = CPUINFO) -> bool:
    """Return whether float32 is quicker there; not where nobody tells of the processors."""
    return device.type == "cpu" and dtype != torch.float32 and not multiply_bfloat16(cpuinfo)
