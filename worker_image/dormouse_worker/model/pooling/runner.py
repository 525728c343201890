"""Runs one pass over whole texts: packs them, asks the module for hidden states, makes a vector of each."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.engine.pooling.batch import PooledSequence, PoolingBatch, PoolingOutput
from dormouse_worker.model.context import forward_context
from dormouse_worker.model.pooling.attention import PackedContext
from dormouse_worker.model.pooling.head import PoolingHead, finished


@dataclass(frozen=True, slots=True)
class Encoder:
    """A transformers model without a head, on its device."""

    module: Any
    device: torch.device
    first_position: int = 0  # what the model calls the place of a text's first token

    @torch.inference_mode()
    def hidden_states(self, texts: Sequence[Sequence[int]], context: PackedContext) -> torch.Tensor:
        """Return [T, H] of packed texts."""
        token_ids = [token_id for text in texts for token_id in text]
        first = self.first_position
        positions = [position for text in texts for position in range(first, first + len(text))]
        arguments: dict[str, Any] = {
            "input_ids": torch.tensor([token_ids], device=self.device),
            "position_ids": torch.tensor([positions], device=self.device),
        }
        if "use_cache" in inspect.signature(type(self.module).forward).parameters:
            arguments["use_cache"] = False
        with forward_context(context):
            hidden: torch.Tensor = self.module(**arguments).last_hidden_state[0]
        return hidden

    def check(self, num_layers: int) -> int:
        """Run one token; return the width. Raises ModelInvalid unless every layer's attention is ours."""
        name, context = type(self.module).__name__, PackedContext([1])
        if "position_ids" not in inspect.signature(type(self.module).forward).parameters:
            raise ModelInvalid(f"{name} takes no position_ids, which a pass over several texts needs")
        try:
            hidden = self.hidden_states([[0]], context)
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


@dataclass(frozen=True, slots=True)
class PoolingRunner:
    """An encoder and the head behind it."""

    encoder: Encoder
    head: PoolingHead

    @torch.inference_mode()
    def execute(self, batch: PoolingBatch) -> PoolingOutput:
        """Compute the batch; return a vector for each sequence, in order."""
        order = sorted(range(len(batch.sequences)), key=lambda place: batch.sequences[place].num_tokens)
        ordered = [batch.sequences[place] for place in order]
        lengths = [sequence.num_tokens for sequence in ordered]
        hidden = self.encoder.hidden_states([sequence.token_ids for sequence in ordered], PackedContext(lengths))
        pooled = self.head.vectors(hidden, lengths)
        vectors, odd = [b""] * len(order), []
        for place, sequence, row in zip(order, ordered, pooled, strict=True):
            vector = self._finish(sequence, row)
            vectors[place] = vector.numpy().astype("<f4").tobytes()
            if not bool(torch.isfinite(vector).all()):
                odd.append(place)
        return PoolingOutput(vectors, tuple(sorted(odd)))

    def _finish(self, sequence: PooledSequence, row: torch.Tensor) -> torch.Tensor:
        params = sequence.params
        normalizes = self.head.normalizes if params.normalize is None else params.normalize
        return finished(row, dimensions=params.dimensions, normalizes=normalizes)
