"""A stand-in for vLLM's core, without a model: it keeps what `tests/worker/foreign/vllm/contract.py` asks of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dormouse_worker.foreign.vllm.interface import BlockShape, CoreLoad, Loaded, Piece, Row, Step, VllmRequest

VOCAB_SIZE = 64
MAX_MODEL_LEN = 512
BLOCK_TOKENS = 32
BLOCK_BYTES = 1 << 12


@dataclass(slots=True)
class _Running:
    request: VllmRequest
    output: list[int] = field(default_factory=list)


class StandInCore:
    """Implements `Core`. What it says next depends on the tokens before and, unless it is greedy, on the seed."""

    def __init__(self) -> None:
        self.num_blocks = 0
        self.num_loads = 0
        self.hidden_blocks = 0  # of those that were asked for, not there
        self.broken: Exception | None = None  # what the next step raises
        self._requests: dict[str, _Running] = {}
        self._known: set[tuple[str, tuple[int, ...]]] = set()  # prefixes of whole blocks, by salt
        self._num_leaving = 0  # aborted since the last step, which forgets them
        self.preemptions = 0  # what the next step tells

    def __repr__(self) -> str:
        return f"StandInCore({self.num_blocks} blocks, {len(self._requests)} requests)"

    def load(self) -> Loaded:
        """See `Core`."""
        self.num_loads += 1
        return Loaded(1000, 4000, "float32", VOCAB_SIZE, MAX_MODEL_LEN, "stand-in")

    def compute_most(self) -> None:
        """See `Core`."""

    def block_shape(self) -> BlockShape:
        """See `Core`."""
        return BlockShape(BLOCK_BYTES, BLOCK_TOKENS)

    def allocate(self, num_blocks: int) -> int:
        """See `Core`."""
        if self.num_blocks:
            self.load()
        self._known.clear()
        self.num_blocks = num_blocks - self.hidden_blocks
        return self.num_blocks

    def add(self, request: VllmRequest) -> None:
        """See `Core`."""
        if request.params["temperature"] < 0:
            raise ValueError("temperature must be non-negative")
        self._requests[request.request_id] = _Running(request)

    def abort(self, request_ids: Sequence[str]) -> None:
        """See `Core`."""
        for request_id in request_ids:
            self._num_leaving += self._requests.pop(request_id, None) is not None

    def step(self) -> Step:
        """See `Core`."""
        if self.broken is not None:
            raise self.broken
        self._num_leaving = 0
        began = [running for running in self._requests.values() if not running.output]
        queries = sum(len(running.request.prompt_token_ids) for running in began)
        pieces = [self._advance(running) for running in self._requests.values()]
        for piece in pieces:
            if piece.finish_reason:
                del self._requests[piece.request_id]
        preemptions, self.preemptions = self.preemptions, 0
        return Step(pieces, queries, sum(piece.cached_tokens for piece in pieces), preemptions)

    def has_work(self) -> bool:
        """See `Core`."""
        return bool(self._requests or self._num_leaving)

    def load_now(self) -> CoreLoad:
        """See `Core`."""
        return CoreLoad([*self._requests], 0, min(1.0, len(self._requests) / max(1, self.num_blocks)))

    def reset_prefix_cache(self) -> None:
        """See `Core`."""
        self._known.clear()

    def check_health(self) -> None:
        """See `Core`."""
        if self.broken is not None:
            raise self.broken

    def shutdown(self) -> None:
        """See `Core`."""
        self.num_blocks = 0

    def _advance(self, running: _Running) -> Piece:
        request, params = running.request, running.request.params
        is_first = not running.output
        cached_tokens = self._remember(request) if is_first else 0
        likeliest = self._likeliest(running)
        running.output.append(likeliest[0])
        asked = params["prompt_logprobs"] if is_first else None
        return Piece(
            request.request_id,
            [likeliest[0]],
            _finish_reason(running),
            [_row(likeliest[0], likeliest, params["logprobs"])] if params["logprobs"] is not None else [],
            [_row(token, likeliest, asked) for token in request.prompt_token_ids[1:]] if asked is not None else [],
            cached_tokens=cached_tokens,
            queue_seconds=0.001 if is_first else 0.0,
            prefill_seconds=0.002 if is_first else 0.0,
        )

    def _likeliest(self, running: _Running) -> list[int]:
        """Return all tokens that may come next, likeliest first."""
        params, before = running.request.params, [*running.request.prompt_token_ids, *running.output]
        mixed = sum((place + 1) * token for place, token in enumerate(before[-8:]))
        turn = mixed + (params["seed"] * 7919 + len(before) * 31 if params["temperature"] else 0)
        ranked = sorted(range(VOCAB_SIZE), key=lambda token: (token * 37 + turn) % VOCAB_SIZE)
        bias = params["logit_bias"] or {}
        ranked.sort(key=lambda token: -bias.get(token, 0.0))
        forbidden = {
            word[-1]
            for word in running.request.bad_words_token_ids
            if before[len(before) - len(word) + 1 :] == word[:-1]
        }
        if len(running.output) < params["min_tokens"]:
            forbidden |= set(params["stop_token_ids"])
        allowed = set(params["allowed_token_ids"] or ranked)
        return [token for token in ranked if token in allowed and token not in forbidden]

    def _remember(self, request: VllmRequest) -> int:
        """Return how many tokens of the prompt are known: whole blocks, and never its last token."""
        prompt, salt = request.prompt_token_ids, request.cache_salt
        prefixes = [tuple(prompt[:end]) for end in range(BLOCK_TOKENS, len(prompt), BLOCK_TOKENS)]
        found = max((len(each) for each in prefixes if (salt, each) in self._known), default=0)
        self._known |= {(salt, each) for each in prefixes}
        return found


def _finish_reason(running: _Running) -> str:
    params = running.request.params
    if len(running.output) >= params["min_tokens"] and running.output[-1] in params["stop_token_ids"]:
        return "stop"
    return "length" if len(running.output) == params["max_tokens"] else ""


def _row(token: int, likeliest: Sequence[int], num_top: int) -> Row:
    top = [*likeliest[:num_top]]
    return [token, *top], [-1.0, *(-1.0 - place for place in range(len(top)))]
