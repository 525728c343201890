"""Builders for tests of the engine, a clock that is set, and what the model of `testing_executor` says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dormouse_worker.common.images import ImageInput
from dormouse_worker.common.ipc import AddRequest, MemoryReport, Sampling

VOCAB_SIZE = 1000


class ManualClock:
    """A clock that stands still until it is advanced."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def make_sampling(**overrides: Any) -> Sampling:
    """Return greedy parameters for four tokens."""
    fields: dict[str, Any] = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "seed": 0, "max_tokens": 4}
    return Sampling(**{**fields, **overrides})


def make_add(request_id: str = "a", prompt: Iterable[int] = (1, 2, 3), **sampling: Any) -> AddRequest:
    """Return a message that adds a request."""
    return AddRequest(request_id, list(prompt), make_sampling(**sampling))


def make_report(**overrides: Any) -> MemoryReport:
    """Return the report of a rank with ten blocks of four tokens."""
    fields: dict[str, Any] = {
        "rank": 0,
        "total_bytes": 1000,
        "gpu_memory_utilization": 1.0,
        "weights_bytes": 500,
        "peak_activation_bytes": 100,
        "non_torch_bytes": 100,
        "kv_cache_bytes": 300,
        "block_bytes": 30,
        "block_size": 4,
        "num_gpu_blocks": 10,
        "num_cpu_blocks": 2,
        "seconds": 0.0,
        "device": "cpu",
        "limited_by": "the test",
        "max_model_len": 32,
    }
    return MemoryReport(**{**fields, **overrides})


def next_token(*visible: Iterable[int]) -> int:
    """Return what the fake model says where its layer groups see these tokens: all of them count, and their order."""
    value = 7
    for tokens in visible:
        for token in tokens:
            value = (value * 31 + token + 1) % VOCAB_SIZE
    return value


def see(tokens: Sequence[int], images: Sequence[ImageInput]) -> list[int]:
    """Return what the fake model sees in tokens: of an image's, which image it is and which row."""
    seen = list(tokens)
    for image in images:
        row = 0
        for start, count in image.spans:
            for position in range(start, min(start + count, len(seen))):
                seen[position] = 1000 * image.digest[0] + row + position - start
            row += count
    return seen


def visible_tokens(tokens: Sequence[int], windows: Sequence[int | None]) -> list[Sequence[int]]:
    """Return what each layer group sees from the last of these tokens."""
    return [tokens if window is None else tokens[-window:] for window in windows]
