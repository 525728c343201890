"""Runs one batch: packs it, sets the forward context, asks for the logits of the rows that sample, samples."""

from __future__ import annotations

import torch

from dormouse_worker.engine.batch import Batch, SampledToken
from dormouse_worker.model.attention.hook import PagedContext
from dormouse_worker.model.attention.interface import AttentionBackend, build_metadata
from dormouse_worker.model.context import forward_context
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loader import LoadedModel
from dormouse_worker.model.sampler import SamplingRow, sample


class ModelRunner:
    """A loaded model and its cache."""

    def __init__(self, model: LoadedModel, cache: KVCache, backend: AttentionBackend) -> None:
        self._model = model
        self._cache = cache
        self._backend = backend

    def __repr__(self) -> str:
        return f"ModelRunner({self._cache!r}, backend={self._backend.name})"

    def execute(self, batch: Batch) -> list[SampledToken]:
        """Compute the batch; return one token per sequence that samples, in order."""
        with torch.inference_mode():
            logits = self._forward(batch)
            sampling = [sequence for sequence in batch.sequences if sequence.samples]
            # the batch does not carry these tokens yet: only their number is true, and only penalties and bad words
            # read more than that
            rows = [SamplingRow(sequence.sampling, (), range(sequence.num_outputs)) for sequence in sampling]
            choices = sample(logits, rows)
        return [
            SampledToken(sequence.request_id, choice.token_id, choice.logprobs)
            for sequence, choice in zip(sampling, choices, strict=True)
        ]

    def _forward(self, batch: Batch) -> torch.Tensor:
        """Return logits [number of sampling sequences, V]."""
        device = self._model.device
        metadata = build_metadata(batch, self._cache.spec.block_size)
        token_ids = [token for sequence in batch.sequences for token in sequence.token_ids]
        last_rows = [
            int(end) - 1
            for end, sequence in zip(metadata.query_starts[1:], batch.sequences, strict=True)
            if sequence.samples
        ]
        context = PagedContext(
            self._cache,
            self._backend.plan(metadata, device),
            torch.as_tensor(metadata.slot_mapping, device=device),
        )
        with forward_context(context):
            output = self._model.module(
                input_ids=torch.tensor([token_ids], device=device),
                position_ids=torch.as_tensor(metadata.positions, device=device)[None],
                use_cache=False,
                logits_to_keep=torch.tensor(last_rows, dtype=torch.long, device=device),
            )
        logits: torch.Tensor = output.logits[0]
        return logits
