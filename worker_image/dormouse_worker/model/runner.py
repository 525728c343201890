"""Runs one batch: packs it, asks a forward path for the logits of the rows that need them, samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec
import torch

from dormouse_worker.engine.batch import Batch, ModelOutput, Proposals, SampledToken
from dormouse_worker.engine.grammars import Grammars
from dormouse_worker.model.adapters.given_keys import give_keys
from dormouse_worker.model.attention.interface import AttentionBackend
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.conclusion import Answer, Conclusion
from dormouse_worker.model.constraints import Stuck
from dormouse_worker.model.forward.choose import ForwardPaths
from dormouse_worker.model.forward.in_torch import TorchForward
from dormouse_worker.model.graphs import DecodeGraphs
from dormouse_worker.model.input_batch import InputBatch, PackedInput
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loaded import LoadedModel
from dormouse_worker.model.parallel.communicator import ALONE, Communicator
from dormouse_worker.model.promised_tokens import PromisedTokens, TokenCopier
from dormouse_worker.model.sampling.answers import Answers, choose_on_device
from dormouse_worker.model.sampling.logit_rows import LogitRows, choose_logit_rows
from dormouse_worker.model.sampling.native_sampler import NativeSampler
from dormouse_worker.model.states import KeptStates
from dormouse_worker.model.to_device import row_index
from dormouse_worker.model.vision.encoded import EncodedImages
from dormouse_worker.model.vision.placed import ImageRows


class Proposer(Protocol):
    """Who proposes what comes behind a pass."""

    def follow(self, batch: Batch) -> None:
        """Take what a batch brings, behind the sequences and before anything is computed."""

    def propose(self, batch: Batch, output: ModelOutput) -> Proposals | None:
        """Return drafts behind what a pass has said and the sequences have taken; None = nobody wanted any."""


class LateAnswer:
    """Answers a pass when it is first asked, and lets go of its logits then."""

    def __init__(self, request_ids: Sequence[str], answer: Callable[[], ModelOutput]) -> None:
        """`request_ids` are those whose tokens are known with the answer only."""
        self.request_ids = frozenset(request_ids)
        self._answer: Callable[[], ModelOutput] | None = answer
        self._output = ModelOutput([])

    @property
    def is_answered(self) -> bool:
        """Return whether somebody has asked."""
        return self._answer is None

    def __call__(self) -> ModelOutput:
        """Return the answer. Raises what computing it raises, and may be asked again then."""
        if self._answer is not None:
            self._output = self._answer()
            self._answer = None
        return self._output


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
        self._paths = ForwardPaths(TorchForward(model, cache, communicator), backend, graphs)
        self._input = InputBatch(
            max_num_seqs=max_num_seqs,
            max_model_len=model.max_model_len,
            block_size=cache.spec.block_size,
            windows=cache.spec.windows,
            image_merge=model.image_merge,
            images_are_whole=model.images_are_whole,
        )
        self._answers = Answers(NativeSampler(backend.kernels) if isinstance(backend, NativeBackend) else None)
        self._conclusion = Conclusion(self._input, self._answers.answer, notes=model.layout.world_size == 1)
        self._images = EncodedImages(model.tower)
        self._drafter: Proposer | None = None
        self._promised: PromisedTokens | None = None
        self._late: list[LateAnswer] = []  # to passes that did not promise every token
        self._has_failed = False  # a batch could not begin: one that builds on it is refused

    def __repr__(self) -> str:
        return f"ModelRunner({self.cache!r}, {self._input!r}, {self._paths!r})"

    @property
    def image_rows(self) -> dict[bytes, torch.Tensor]:
        """See `allocation.Runner`."""
        return self._images.rows

    def bind_by(self, grammars: Grammars, *, expects_drafts: bool) -> None:
        """See `Conclusion.bind_by`."""
        self._conclusion.bind_by(grammars, expects_drafts=expects_drafts)

    def read_along(self, states: KeptStates) -> None:
        """From now on leave each pass's states there; before the first pass."""
        self._paths = self._paths.read_along(states)

    def draft_by(self, make_drafter: Callable[[InputBatch, Answer], Proposer]) -> None:
        """From now on propose drafts where they are wanted; only where tokens are known when a pass has been computed.

        Who makes the drafter gets the sequences that it goes on from, and who answers logits.
        """
        self._drafter = make_drafter(self._input, self._answers.answer)

    def close(self) -> None:
        """Drop the images, and one that is half encoded; the runner is not used again."""
        self._images.close()

    def run_ahead(self, copier: TokenCopier) -> None:
        """From now on leave sampled tokens on the device and copy them for who waits; only where no others compute."""
        self._promised = PromisedTokens(self._input, self._model.device, copier)
        self._paths.go_on_from(self._promised)

    def execute(self, batch: Batch) -> ModelOutput:
        """Compute the batch; return one token per sequence that samples, in order. See `Batch` for the order.

        In a group only the rank that samples returns any, and none is noted before `append_sampled` brings it.
        """
        return self.submit(batch)()

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """Begin with the batch; return who waits for what `execute` returns. Other batches may be begun before.

        Raises RuntimeError if the one before raised and this one is not fresh.
        """
        if self._has_failed and not batch.is_fresh:
            raise RuntimeError("the batch before failed, and this one is not fresh")
        self._has_failed = True
        self._make_way(batch)
        self._take_adapters(batch)
        self._input.update(batch)
        if self._drafter is not None:
            self._drafter.follow(batch)
        news = self._images.update(batch)
        wait_for_output = self._begin(batch)
        self._has_failed = False
        if news.unreadable or news.encoded:
            told = {"unreadable": news.unreadable, "encoded": news.encoded}
            return lambda: msgspec.structs.replace(wait_for_output(), **told)
        return wait_for_output

    def _begin(self, batch: Batch) -> Callable[[], ModelOutput]:
        if batch.swap_out or batch.swap_in:
            self._move(batch)
        self._give_keys(batch)
        packed = self._input.pack(batch)
        wanted = choose_logit_rows(batch, packed)
        samples = self._model.layout.samples
        wait_for_masks = self._conclusion.begin_masks(wanted) if samples else dict
        logits = self._paths.compute(packed, wanted.rows, self._find_rows(packed))
        if not samples:
            return partial(ModelOutput, [])
        if self._promised is None or wanted.scored is not None or not isinstance(logits, torch.Tensor):
            output = self._conclusion.conclude(wanted, logits, wait_for_masks)
            if self._drafter is not None:
                output = msgspec.structs.replace(output, proposals=self._drafter.propose(batch, output))
            return lambda: output
        if wanted.only_logits_count:
            return self._promised.promise(wanted.batch_rows, *choose_on_device(logits, wanted.batch_rows))
        self._late.append(self._promise_some(self._promised, wanted, logits, wait_for_masks))
        return self._late[-1]

    def _give_keys(self, batch: Batch) -> None:
        """Fill the beginnings of new sequences that no pass computes."""
        for new in batch.new:
            if new.num_given_tokens:
                assert self._model.adapters is not None, "a soft prompt lies in a slot"
                blocks = self._input.blocks_of(self._input.sequence(new.request_id), new.num_given_tokens)
                give_keys(self.cache, blocks, self._model.adapters.keys_of(new.lora_slot, new.num_given_tokens))

    def _find_rows(self, packed: PackedInput) -> tuple[ImageRows, ...]:
        """Return the rows that are no tokens', where tokens are embedded."""
        images = self._images.find(packed.images)
        if not packed.virtual or not self._model.layout.is_first_stage:
            return images
        assert self._model.adapters is not None, "a soft prompt lies in a slot"
        return images + self._model.adapters.virtual_rows(packed.virtual)

    def _take_adapters(self, batch: Batch) -> None:
        for slot, digest in batch.lora_moves:
            assert self._model.adapters is not None, "the scheduler has no slots where there are none"
            self._model.adapters.put(slot, digest)

    def _make_way(self, batch: Batch) -> None:
        """Finish with passes before where this one goes on from tokens that were not promised."""
        waiting, self._late = [late for late in self._late if not late.is_answered], []
        if batch.is_fresh and self._promised is not None:
            self._promised.forget()
            return
        for late in waiting:
            if late.request_ids.isdisjoint(batch.request_ids):
                self._late.append(late)
            else:
                late()

    def _promise_some(
        self, promised: PromisedTokens, wanted: LogitRows, logits: torch.Tensor, wait_for_masks: Callable[[], Stuck]
    ) -> LateAnswer:
        """Promise the tokens that the logits alone decide; set the other rows aside until they are asked for."""
        free, (kept, others) = wanted.batch_rows.free, wanted.without_free_ones()
        known: Callable[[], ModelOutput] = partial(ModelOutput, [])
        if len(free):
            known = promised.promise(free, *choose_on_device(logits[row_index(wanted.free_rows, logits)], free))
        rows = logits[row_index(kept, logits)]  # a copy: the next pass may write its logits to the same place
        beside = promised.set_aside(rows)

        def answer() -> ModelOutput:
            first = known()
            with beside():
                second = self._conclusion.conclude(others, rows, wait_for_masks)
            return msgspec.structs.replace(
                second, sampled=first.sampled + second.sampled, not_finite=first.not_finite + second.not_finite
            )

        return LateAnswer(others.batch_rows.request_ids, answer)

    def append_sampled(self, tokens: Sequence[SampledToken]) -> None:
        """Note what was sampled for sequences of an earlier batch; for those that were released since, nothing."""
        for token in tokens:
            self._input.append(token.request_id, token.token_id, *token.forced)

    @torch.inference_mode()
    def _move(self, batch: Batch) -> None:
        self._host_cache.copy_blocks(self.cache, batch.swap_out)
        self.cache.copy_blocks(self._host_cache, batch.swap_in)
