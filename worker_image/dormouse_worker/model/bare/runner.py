"""Runs one batch without torch: packs it, lets our kernels compute the logits of the rows that need them, samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from dormouse_worker.engine.batch import Batch, ModelOutput, Proposals, SampledToken
from dormouse_worker.engine.grammars import Grammars
from dormouse_worker.model.attention.native_plan import NativePlan
from dormouse_worker.model.attention.paged import PagedContext
from dormouse_worker.model.bare.loader import BareModel
from dormouse_worker.model.conclusion import Answer, Conclusion
from dormouse_worker.model.input_batch import InputBatch
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.sampling import on_host
from dormouse_worker.model.sampling.logit_rows import LogitRows, choose_logit_rows
from dormouse_worker.model.sampling.native_sampler import NativeSampler
from dormouse_worker.model.scratch import Floats, Scratch
from dormouse_worker.model.tensors import Tensor
from dormouse_worker.native.library import Kernels


class Proposer(Protocol):
    """Who drafts."""

    def propose(self, batch: Batch, output: ModelOutput) -> Proposals | None:
        """Return drafts behind what a pass has said and the sequences have taken; None = nobody wanted any."""


MakeDrafter = Callable[[InputBatch, Answer], Proposer]


class BareRunner:
    """A loaded model, its cache, the host memory for swapped blocks, and what it knows of the sequences."""

    def __init__(
        self, model: BareModel, cache: KVCache, host_cache: KVCache, kernels: Kernels, *, max_num_seqs: int
    ) -> None:
        self._model = model
        self._cache, self._host_cache = cache, host_cache
        self._kernels = kernels
        self._scratch = Scratch()
        self._sampler = NativeSampler(kernels)
        self._input = InputBatch(
            max_num_seqs=max_num_seqs,
            max_model_len=model.max_model_len,
            block_size=cache.spec.block_size,
            windows=cache.spec.windows,
        )
        self._conclusion = Conclusion(self._input, self._answer, notes=True)
        self._drafter: Proposer | None = None
        self._has_failed = False  # a batch could not begin: one that builds on it is refused
        self.image_rows: dict[bytes, Tensor] = {}  # see `allocation.Runner`: it reads no images

    def __repr__(self) -> str:
        return f"BareRunner({self._cache!r}, {self._input!r}, {self._model.native!r})"

    def bind_by(self, grammars: Grammars, *, expects_drafts: bool) -> None:
        """See `Conclusion.bind_by`."""
        self._conclusion.bind_by(grammars, expects_drafts=expects_drafts)

    def draft_by(self, make_drafter: MakeDrafter, scratch: Scratch) -> None:
        """From now on propose drafts where they are wanted, from the states that this scratch keeps."""
        self._scratch = scratch
        self._drafter = make_drafter(self._input, self._answer)

    def close(self) -> None:
        """See `allocation.Runner`: nothing is held."""

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """See `ModelRunner.submit`; the output is there when this returns."""
        if self._has_failed and not batch.is_fresh:
            raise RuntimeError("the batch before failed, and this one is not fresh")
        self._has_failed = True
        self._input.update(batch)
        self._host_cache.copy_blocks(self._cache, batch.swap_out)
        self._cache.copy_blocks(self._host_cache, batch.swap_in)
        output = self._compute(batch)
        self._has_failed = False
        return lambda: output

    def append_sampled(self, tokens: Sequence[SampledToken]) -> None:
        """See `ModelRunner.append_sampled`: this rank is alone, and knows what it sampled."""

    def _compute(self, batch: Batch) -> ModelOutput:
        packed = self._input.pack(batch)
        wanted = choose_logit_rows(batch, packed)
        wait_for_masks = self._conclusion.begin_masks(wanted)
        plans = [NativePlan(self._kernels, group) for group in packed.groups]
        logits = self._model.native.forward(packed, wanted.rows, PagedContext(self._cache, plans, self._scratch))
        output = self._conclusion.conclude(wanted, logits, wait_for_masks)
        if self._drafter is None:
            return output
        return msgspec.structs.replace(output, proposals=self._drafter.propose(batch, output))

    def _answer(self, wanted: LogitRows, logits: Floats, sequences: InputBatch) -> ModelOutput:
        return on_host.answer(wanted, logits, sequences, self._sampler)
