"""The draft model of one rank: loaded beside the target, profiled, asleep and awake with it, and what it drafts for."""

from __future__ import annotations

from collections.abc import Sequence

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import Batch
from dormouse_worker.executor.worker import setup
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.conclusion import Answer
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.drafting.dispensable import Dispensable
from dormouse_worker.model.drafting.drafter import MAX_HOLE_TOKENS, Drafter
from dormouse_worker.model.drafting.load import load_draft
from dormouse_worker.model.drafting.reach import Reach
from dormouse_worker.model.forward.choose import ForwardPaths, describe_path
from dormouse_worker.model.forward.in_torch import TorchForward
from dormouse_worker.model.input_batch import InputBatch
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loaded import LoadedModel
from dormouse_worker.model.memory.profile import without_soft_prompts
from dormouse_worker.model.parallel.communicator import ALONE
from dormouse_worker.model.runner import ModelRunner
from dormouse_worker.model.sampling.answers import Answers
from dormouse_worker.model.sampling.native_sampler import NativeSampler


class DraftModel:
    """Implements `setup.Draft`. Owns the draft model's weights; its keys and values lie behind the target's."""

    def __init__(self, settings: EngineSettings, device: Device, target: LoadedModel) -> None:
        """Load it. Raises as `load_draft`. `target` is how the model is to be used from now on."""
        self._settings = settings
        self._first_layer = len(target.cache_spec.layers)
        self.target, self._model = load_draft(settings, device, target)
        self._reach: Reach | None = None  # of the runner that computes now
        self._backend = setup.choose_backend(settings, self._model, device.torch_device, wants_graphs=False)
        self.sleep_part = Dispensable(self._model.weights)

    def __repr__(self) -> str:
        return f"DraftModel({self._settings.speculation_model}, {self.sleep_part!r})"

    @property
    def words(self) -> str:
        """Return who drafts, and by which path, or why nobody does."""
        if lost := self.sleep_part.lost:
            return f"no drafts, as the draft model did not come back: {lost}"
        return f"drafts by {self._settings.speculation_model}: {describe_path(self._model, self._backend.name)}"

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of its weights."""
        return self._model.weights_bytes

    @property
    def facts(self) -> tuple[object, ...]:
        """See `Draft`: nothing of it is kept."""
        return ()

    def attach(self, runner: ModelRunner, cache: KVCache, host_cache: KVCache) -> None:
        """Let a runner over these caches propose what this model says."""
        forward = TorchForward(self._model, cache.part(self._first_layer))
        paths, native = ForwardPaths(forward, self._backend), None
        if isinstance(self._backend, NativeBackend):
            native = NativeSampler(self._backend.kernels)
        most = min(MAX_HOLE_TOKENS, self._settings.max_num_batched_tokens)

        def make_drafter(sequences: InputBatch, answer: Answer) -> Drafter:
            del answer  # it has a sampler of its own
            reach = self._reach = Reach(cache.num_blocks, host_cache.num_blocks, cache.spec.block_size, sequences)
            return Drafter(paths, Answers(native), sequences, reach, most, is_there=lambda: not self.sleep_part.lost)

        runner.draft_by(make_drafter)

    def run(self, batches: Sequence[Batch], cache: KVCache, host_cache: KVCache) -> None:
        """See `Draft`: all batches, as if they were the target's."""
        part = cache.part(self._first_layer)
        model, most = self._model.for_profile(), self._settings.max_num_seqs
        runner = ModelRunner(model, part, host_cache, self._backend, max_num_seqs=most, communicator=ALONE)
        for batch in batches:
            runner.execute(without_soft_prompts(batch))

    def part_of_target(self, cache: KVCache) -> KVCache:
        """Return what the target alone has in a cache: as much as outlives it."""
        return cache.part(0, self._first_layer)

    def forget(self, block_ids: Sequence[int]) -> None:
        """These blocks came from elsewhere, without this model's part: it computes that before it proposes."""
        if self._reach is not None:
            self._reach.forget(block_ids)

    def close(self) -> None:
        """Give the memory back."""
        self._model.close()
