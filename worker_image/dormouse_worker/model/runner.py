"""Runs one batch: packs it, sets the forward context, asks for the logits of the rows that need them, samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isnan

import numpy as np
import torch

from dormouse_worker.engine.batch import Batch, ModelOutput, SampledToken
from dormouse_worker.model.attention.hook import PagedContext
from dormouse_worker.model.attention.interface import AttentionBackend, AttentionPlan, Ints
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.batch_rows import BatchRows
from dormouse_worker.model.context import forward_context
from dormouse_worker.model.graphs import DecodeGraphs
from dormouse_worker.model.input_batch import InputBatch, PackedInput
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loader import LoadedModel
from dormouse_worker.model.parallel.communicator import ALONE, Communicator
from dormouse_worker.model.promised_tokens import PromisedTokens, TokenCopier
from dormouse_worker.model.sampling.gather import to_device
from dormouse_worker.model.sampling.logit_rows import LogitRows, choose_logit_rows
from dormouse_worker.model.sampling.native_sampler import NativeSampler
from dormouse_worker.model.sampling.sampler import Choice, are_chosen_finite, choose, prompt_logprobs, sample
from dormouse_worker.model.scratch import Floats, Scratch


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


class LateAnswer:
    """Answers a pass when it is first asked, and lets go of its logits then."""

    def __init__(self, answer: Callable[[], ModelOutput]) -> None:
        self._answer: Callable[[], ModelOutput] | None = answer
        self._output = ModelOutput([])

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
        self._backend = backend
        self._graphs = graphs
        self._native_sampler = NativeSampler(backend.kernels) if isinstance(backend, NativeBackend) else None
        self._compute = ForwardPass(model, cache, communicator)
        self._input = InputBatch(
            max_num_seqs=max_num_seqs,
            max_model_len=model.max_model_len,
            block_size=cache.spec.block_size,
            windows=cache.spec.windows,
        )
        self._promised: PromisedTokens | None = None
        self._late: LateAnswer | None = None  # to the last pass, where it promised nothing
        self._has_failed = False  # a batch was not begun: the next one may build on it

    def __repr__(self) -> str:
        return f"ModelRunner({self.cache!r}, {self._input!r}, backend={self._backend.name})"

    def run_ahead(self, copier: TokenCopier) -> None:
        """From now on leave sampled tokens on the device and copy them for who waits; only where no others compute."""
        self._promised = PromisedTokens(self._input, self._model.device, copier)

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
        wait_for_output = self._begin(batch)
        self._has_failed = False
        return wait_for_output

    def _begin(self, batch: Batch) -> Callable[[], ModelOutput]:
        self._make_way(batch)
        self._input.update(batch)
        if batch.swap_out or batch.swap_in:
            self._move(batch)
        packed = self._input.pack(batch)
        wanted = choose_logit_rows(batch, packed)
        logits = self._forward(packed, wanted)
        if not self._model.layout.samples:
            return partial(ModelOutput, [])
        if self._promised is None:
            output = self._conclude(wanted, logits)
            return lambda: output
        if isinstance(logits, torch.Tensor) and wanted.only_logits_count:
            return self._promised.promise(wanted.batch_rows, *_choose(logits, wanted.batch_rows))
        self._late = LateAnswer(partial(self._conclude, wanted, logits))
        return self._late

    def _make_way(self, batch: Batch) -> None:
        """Finish with the pass before, whose tokens are the next one's input and whose logits lie where its will."""
        late, self._late = self._late, None
        if batch.is_fresh and self._promised is not None:
            self._promised.forget()
        elif late is not None:
            late()

    def _conclude(self, wanted: LogitRows, logits: torch.Tensor | Floats) -> ModelOutput:
        output = self._answer(wanted, logits)
        if self._model.layout.world_size == 1:
            self._input.append_each(wanted.batch_rows, [token.token_id for token in output.sampled])
        return output

    def append_sampled(self, tokens: Sequence[SampledToken]) -> None:
        """Note what was sampled for sequences of an earlier batch; for those that were released since, nothing."""
        for token in tokens:
            self._input.append(token.request_id, token.token_id)

    @torch.inference_mode()
    def _move(self, batch: Batch) -> None:
        self._host_cache.copy_blocks(self.cache, batch.swap_out)
        self.cache.copy_blocks(self._host_cache, batch.swap_in)

    def _forward(self, packed: PackedInput, wanted: LogitRows) -> torch.Tensor | Floats:
        """Return logits [number of wanted rows, V]: an array if they were computed without torch."""
        native = self._model.native_beside(self._backend.name)
        if native is None:
            return self._forward_in_torch(packed, wanted)
        plans = [self._backend.plan(group, self._model.device) for group in packed.groups]
        context = PagedContext(self.cache, plans, self._compute.scratch)
        return native.forward(packed.token_ids, packed.positions, wanted.rows, context, self._compute.communicator)

    @torch.inference_mode()
    def _forward_in_torch(self, packed: PackedInput, wanted: LogitRows) -> torch.Tensor:
        device = self._model.device
        inputs = to_device(np.stack([packed.token_ids, packed.positions]), device)
        if self._promised is not None:
            self._promised.put_into(inputs[0], packed)
        can_replay = self._graphs is not None and not self._model.weights.is_arriving  # a graph waits for nobody
        if self._graphs is not None and can_replay and self._graphs.fits(packed, wanted.rows):
            return self._graphs.run(packed, inputs)
        token_ids, positions = inputs
        plans = [self._backend.plan(group, device) for group in packed.groups]
        return self._compute(token_ids, positions, to_device(wanted.rows, device), plans)

    def _answer(self, wanted: LogitRows, logits: torch.Tensor | Floats) -> ModelOutput:
        """Return what is said to these logits. Without torch where it can be: cold, its calls take some 20 µs each."""
        batch_rows, native = wanted.batch_rows, self._native_sampler
        if isinstance(logits, torch.Tensor):
            return _answer_in_torch(wanted, logits, native)
        if wanted.prompt_parts or native is None or not batch_rows.are_plain:
            return _answer_in_torch(wanted, torch.from_numpy(logits), native)
        if batch_rows.take_likeliest:
            tokens = logits.argmax(-1)
        else:
            tokens = native.choose(logits, batch_rows.draws, self._input.positions_of(batch_rows))
        sampled = list(map(SampledToken, batch_rows.request_ids, tokens.tolist()))
        return ModelOutput(sampled, not_finite=_find_odd(logits, tokens, batch_rows))


def _find_odd(logits: Floats, tokens: Ints, batch_rows: BatchRows) -> tuple[str, ...]:
    """Return whose chosen tokens have logits that are not finite; the chosen one's tells of the row, see `sampler`."""
    are_finite = np.isfinite(logits[np.arange(len(tokens)), tokens])
    if are_finite.all():
        return ()
    return tuple(batch_rows.request_ids[row] for row in np.flatnonzero(~are_finite))


@torch.inference_mode()
def _choose(logits: torch.Tensor, batch_rows: BatchRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens, and whether their logits are finite."""
    scores = logits.float()
    tokens = choose(scores, batch_rows.sequences)
    return tokens, are_chosen_finite(scores, tokens)


@torch.inference_mode()
def _answer_in_torch(wanted: LogitRows, logits: torch.Tensor, native: NativeSampler | None) -> ModelOutput:
    prompt = {
        part.request_id: prompt_logprobs(logits[part.rows], part.token_ids, part.num_top)
        for part in wanted.prompt_parts
    }
    is_all = len(wanted.sampled) == len(logits)  # rows keep their order: nothing to choose, nothing to copy
    choices = _sample(wanted.batch_rows, logits if is_all else logits[wanted.sampled], native)
    odd = {request_id: None for request_id, choice in choices if not choice.is_finite}
    odd |= dict.fromkeys(request_id for request_id, rows in prompt.items() if any(isnan(row.sampled) for row in rows))
    sampled = [SampledToken(request_id, choice.token_id, choice.logprobs) for request_id, choice in choices]
    return ModelOutput(sampled, prompt, tuple(odd))


def _sample(batch_rows: BatchRows, logits: torch.Tensor, native: NativeSampler | None) -> list[tuple[str, Choice]]:
    """Return one choice for each sequence, which has that row of the logits."""
    if not len(batch_rows):
        return []
    return list(zip(batch_rows.request_ids, sample(logits, batch_rows.sequences, native), strict=True))
