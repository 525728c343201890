"""Runs one batch: packs it, sets the forward context, asks for the logits of the rows that need them, samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import torch

from dormouse_worker.engine.batch import Batch, ModelOutput, SampledToken
from dormouse_worker.model.attention.hook import PagedContext
from dormouse_worker.model.attention.interface import AttentionBackend, AttentionPlan, Ints
from dormouse_worker.model.context import forward_context
from dormouse_worker.model.graphs import DecodeGraphs
from dormouse_worker.model.input_batch import InputBatch, PackedInput, RankSequence
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loader import LoadedModel
from dormouse_worker.model.logit_rows import LogitRows, choose_logit_rows
from dormouse_worker.model.parallel.communicator import ALONE, Communicator
from dormouse_worker.model.sampler import likeliest, prompt_logprobs, sample
from dormouse_worker.model.scratch import Scratch

_takes_likeliest = attrgetter("takes_likeliest")


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """Implements `graphs.Forward` with a model and a cache."""

    model: LoadedModel
    cache: KVCache
    communicator: Communicator = ALONE
    scratch: Scratch = field(default_factory=Scratch)

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, plans: Sequence[AttentionPlan]
    ) -> torch.Tensor:
        """See `graphs.Forward`."""
        with forward_context(PagedContext(self.cache, plans, self.scratch), self.communicator):
            return self.model.compute_logits(token_ids, positions, rows)


class ModelRunner:
    """A loaded model, its cache on the device and in host memory, and what it knows of the sequences."""

    def __init__(
        self,
        model: LoadedModel,
        cache: KVCache,
        host_cache: KVCache,
        backend: AttentionBackend,
        *,
        max_num_seqs: int,
        graphs: DecodeGraphs | None = None,
        communicator: Communicator = ALONE,
    ) -> None:
        """`graphs` were recorded over this very model and cache; steps that fit them are replayed.

        With a communicator to others, all ranks execute the same batches, and one of them samples.
        """
        self._model = model
        self.cache = cache
        self._host_cache = host_cache
        self._backend = backend
        self._graphs = graphs
        self._compute = ForwardPass(model, cache, communicator)
        self._input = InputBatch(
            max_num_seqs=max_num_seqs,
            max_model_len=model.max_model_len,
            block_size=cache.spec.block_size,
            windows=cache.spec.windows,
        )

    def __repr__(self) -> str:
        return f"ModelRunner({self.cache!r}, {self._input!r}, backend={self._backend.name})"

    def execute(self, batch: Batch) -> ModelOutput:
        """Compute the batch; return one token per sequence that samples, in order. See `Batch` for the order.

        In a group only the rank that samples returns any, and none is noted before `append_sampled` brings it.
        """
        self._input.update(batch)
        with torch.inference_mode():
            self._host_cache.copy_blocks(self.cache, batch.swap_out)
            self.cache.copy_blocks(self._host_cache, batch.swap_in)
            packed = self._input.pack(batch)
            wanted = choose_logit_rows(batch, packed)
            logits = self._forward(packed, wanted)
            if not self._model.layout.samples:
                return ModelOutput([])
            prompt = {
                part.request_id: prompt_logprobs(logits[part.rows], part.token_ids, part.num_top)
                for part in wanted.prompt_parts
            }
            is_all = len(wanted.sampled) == len(logits)  # rows keep their order: nothing to choose, nothing to copy
            sampled = _sample(wanted.sequences, logits if is_all else logits[wanted.sampled])
        if self._model.layout.world_size == 1:
            for sequence, token in zip(wanted.sequences, sampled, strict=True):
                sequence.append(token.token_id)
        return ModelOutput(sampled, prompt)

    def append_sampled(self, tokens: Sequence[SampledToken]) -> None:
        """Note what was sampled for sequences of an earlier batch; for those that were released since, nothing."""
        for token in tokens:
            self._input.append(token.request_id, token.token_id)

    def _forward(self, packed: PackedInput, wanted: LogitRows) -> torch.Tensor:
        """Return logits [number of wanted rows, V]."""
        can_replay = self._graphs is not None and not self._model.weights.is_arriving  # a graph waits for nobody
        if self._graphs is not None and can_replay and self._graphs.fits(packed, wanted.rows):
            return self._graphs.run(packed)
        device = self._model.device
        arrays = (packed.token_ids, packed.positions, wanted.rows)
        token_ids, positions, rows = (_on_device(array, device) for array in arrays)
        return self._compute(token_ids, positions, rows, [self._backend.plan(group, device) for group in packed.groups])


def _sample(sequences: Sequence[RankSequence], logits: torch.Tensor) -> list[SampledToken]:
    """Return one token for each sequence, which has that row of the logits."""
    if not sequences:
        return []
    if all(map(_takes_likeliest, sequences)):
        tokens = likeliest(logits.float()).tolist()
        return [SampledToken(sequence.request_id, token) for sequence, token in zip(sequences, tokens, strict=True)]
    choices = sample(logits, sequences)
    return [
        SampledToken(sequence.request_id, choice.token_id, choice.logprobs)
        for sequence, choice in zip(sequences, choices, strict=True)
    ]


def _on_device(array: Ints, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device)
