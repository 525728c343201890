"""What the rest of this package needs of vLLM: loaded and measured first, allocated later, then stepped.

`core` is vLLM itself; `testing` has a stand-in that keeps the same contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Row = tuple[list[int], list[float]]  # token ids and their log-probabilities: first the one that is there


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is known of the model once its weights are there."""

    num_parameters: int
    weights_bytes: int
    dtype: str
    vocab_size: int
    max_model_len: int
    version: str  # of vLLM


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What one block of the cache is."""

    num_bytes: int  # in all layers
    num_tokens: int


@dataclass(frozen=True, slots=True)
class VllmRequest:
    """A request in vLLM's words."""

    request_id: str
    prompt_token_ids: list[int]
    params: Mapping[str, Any]  # of vLLM's SamplingParams, by name
    bad_words_token_ids: list[list[int]]  # which SamplingParams has as text
    priority: int
    cache_salt: str


@dataclass(frozen=True, slots=True)
class Piece:
    """What a step gave one request."""

    request_id: str
    token_ids: list[int]
    finish_reason: str = ""  # stop | length | abort | error; "" = it goes on
    logprobs: Sequence[Row] = ()  # of each token
    prompt_logprobs: Sequence[Row] = ()  # of each token of the prompt but the first
    cached_tokens: int = 0  # of the prompt; in the first piece
    queue_seconds: float = 0.0  # added → scheduled; in the first piece
    prefill_seconds: float = 0.0  # scheduled → first token; in the first piece


@dataclass(frozen=True, slots=True)
class Step:
    """What a step gave, and what was counted in it."""

    pieces: Sequence[Piece]
    prefix_queries: int = 0  # tokens
    prefix_hits: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class CoreLoad:
    """What there is to do."""

    running_ids: Sequence[str] = ()
    num_waiting: int = 0
    kv_cache_usage: float = 0.0


class Core(Protocol):
    """vLLM's engine core. What it raises is unexpected, but for WorkerError."""

    def load(self) -> Loaded:
        """Load the weights. Raises InvalidSettings, ModelInvalid."""

    def compute_most(self) -> None:
        """Run the largest batch; what is compiled for the model is compiled the first time."""

    def block_shape(self) -> BlockShape:
        """Return what a block takes and holds."""

    def allocate(self, num_blocks: int) -> int:
        """Allocate so many blocks; return how many vLLM says there are. Ones from before go first, with the model."""

    def add(self, request: VllmRequest) -> None:
        """Take a request in. Raises ValueError where vLLM refuses its parameters."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """Free these requests, of which no piece comes any more; unknown ids are ignored."""

    def step(self) -> Step:
        """Go one step. After an exception nothing is known of the core: only a new process goes on."""

    def has_work(self) -> bool:
        """Return whether a step would do something."""

    def load_now(self) -> CoreLoad:
        """Return what there is to do."""

    def reset_prefix_cache(self) -> None:
        """Forget what was computed of prompts; what running requests hold stays."""

    def check_health(self) -> None:
        """Compute something small, with nothing running. Raises whatever goes wrong."""

    def shutdown(self) -> None:
        """Free everything. Safe when nothing was loaded."""
