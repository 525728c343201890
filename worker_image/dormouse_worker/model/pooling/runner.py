"""Runs one pass over whole texts: packs them, asks the module for hidden states, makes numbers of each."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Protocol

import torch

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.task_messages import PoolingParams
from dormouse_worker.engine.pooling.batch import PooledSequence, PoolingBatch, PoolingOutput
from dormouse_worker.model.context import forward_context
from dormouse_worker.model.native_way import NativeWay
from dormouse_worker.model.pooling.attention import PackedContext
from dormouse_worker.model.pooling_steps import PassInSteps, Steps
from dormouse_worker.native.library import Kernels


class Head(Protocol):
    """Makes of hidden states what a call is answered with."""

    size: int  # numbers for each text

    def outputs(self, hidden: torch.Tensor, sequences: Sequence[PooledSequence]) -> list[torch.Tensor]:
        """Return numbers in host memory for each text, in order, of rows [T, H]; neighbours may have one length."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """A transformers model without a head, on its device."""

    module: Any
    device: torch.device
    first_position: int = 0  # what the model calls the place of a text's first token
    kernels: Kernels | None = None  # where they are faster than torch

    @torch.inference_mode()
    def hidden_states(self, texts: Sequence[PooledSequence], context: PackedContext) -> torch.Tensor:
        """Return [T, H] of packed texts."""
        with forward_context(context), self._way():
            hidden: torch.Tensor = self.module(**self.arguments(texts)).last_hidden_state[0]
        return hidden

    def arguments(self, texts: Sequence[PooledSequence]) -> dict[str, Any]:
        """Return what the module takes for packed texts."""
        known, first = _arguments_of(self.module.__class__), self.first_position
        positions = chain.from_iterable(range(first, first + text.num_tokens) for text in texts)
        arguments: dict[str, Any] = {
            "input_ids": self._row(chain.from_iterable(text.token_ids for text in texts)),
            "position_ids": self._row(positions),
        }
        if "use_cache" in known:
            arguments["use_cache"] = False
        has_types = "token_type_ids" in known and getattr(self.module.config, "type_vocab_size", 0) > 1
        if has_types and any(text.second_start for text in texts):
            arguments["token_type_ids"] = self._row(chain.from_iterable(map(_types, texts)))
        return arguments

    def check(self, num_layers: int) -> int:
        """Run one token; return the width. Raises ModelInvalid unless every layer's attention is ours."""
        name, context = type(self.module).__name__, PackedContext([1])
        if "position_ids" not in _arguments_of(self.module.__class__):
            raise ModelInvalid(f"{name} takes no position_ids, which a pass over several texts needs")
        try:
            hidden = self.hidden_states([PooledSequence([0], PoolingParams())], context)
        except ModelInvalid:
            raise
        except Exception as error:  # models that bring their own attention expect what we do not give
            raise ModelInvalid(f"{name} does not run on packed texts: {error}") from error
        if context.num_calls != num_layers:
            raise ModelInvalid(
                f"{context.num_calls} of {num_layers} layers of {name} use transformers' attention interface; one that "
                "does not would mix the texts of a pass"
            )
        return int(hidden.shape[-1])

    def _way(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.kernels is None else NativeWay(self.kernels, self.kernels.num_threads)

    def _row(self, numbers: chain[int]) -> torch.Tensor:
        return torch.tensor([list(numbers)], device=self.device)


@cache
def _arguments_of(module_type: type) -> frozenset[str]:
    """Return the names of what the module takes: looked up once, not in every pass."""
    return frozenset(inspect.signature(module_type.forward).parameters)  # type: ignore[attr-defined]  # torch's modules


def _types(text: PooledSequence) -> list[int]:
    start = text.second_start or text.num_tokens
    return [0] * start + [1] * (text.num_tokens - start)


@dataclass(frozen=True, slots=True)
class PoolingRunner:
    """An encoder and the head behind it."""

    encoder: Encoder
    head: Head

    def begin(self, batch: PoolingBatch) -> PassInSteps:
        """Return a pass over the batch of which nothing is computed yet. It has one step: it does not stop."""
        return PassInSteps(self._steps(batch))

    def _steps(self, batch: PoolingBatch) -> Steps:
        yield from ()
        return self._compute(batch)

    @torch.inference_mode()
    def _compute(self, batch: PoolingBatch) -> PoolingOutput:
        order = sorted(range(len(batch.sequences)), key=lambda place: batch.sequences[place].num_tokens)
        ordered = [batch.sequences[place] for place in order]
        context = PackedContext([sequence.num_tokens for sequence in ordered])
        hidden = self.encoder.hidden_states(ordered, context)
        vectors, odd = [b""] * len(order), []
        for place, vector in zip(order, self.head.outputs(hidden, ordered), strict=True):
            vectors[place] = vector.numpy().astype("<f4").tobytes()
            if not bool(torch.isfinite(vector).all()):
                odd.append(place)
        return PoolingOutput(vectors, tuple(sorted(odd)))
