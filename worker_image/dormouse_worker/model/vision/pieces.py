"""A computation of torch in pieces: it can stop between any two operations, and has the bits of the whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dormouse_worker.model.pieces import Pause, Pieces


def encoder_pieces(
    compute: Callable[[], torch.Tensor], clock: Callable[[], float] = time.perf_counter
) -> Pieces[torch.Tensor]:
    """Return what computes it. Operations are what Python asks of torch, so any model's code can stop between them."""

    def stopping(pause: Pause) -> torch.Tensor:
        with AfterEach(pause):
            return compute()

    return Pieces(stopping, clock, name="encoder")


class AfterEach(TorchFunctionMode):
    """Calls somebody behind each operation of torch, in the thread that entered it."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        self._call()
        return result
