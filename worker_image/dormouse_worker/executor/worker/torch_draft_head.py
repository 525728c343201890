"""The head of a worker with torch: beside its model, asleep and awake with it, and who drafts by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import Batch
from dormouse_worker.executor.worker import setup
from dormouse_worker.model.conclusion import Answer
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.drafting.dispensable import Dispensable
from dormouse_worker.model.drafting.head_drafter import HeadDrafter
from dormouse_worker.model.drafting.torch_head import DraftingHead, TorchPasses
from dormouse_worker.model.input_batch import InputBatch
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.runner import ModelRunner
from dormouse_worker.model.states import KeptStates


class TorchDraftHead:
    """Implements `setup.Draft`. Owns the head's weights; its keys and values lie in the model's cache, behind its."""

    def __init__(self, settings: EngineSettings, device: Device, loaded: DraftingHead) -> None:
        """Take a head that was loaded. Raises InvalidSettings where nobody attends in its layer; it is closed then."""
        self._loaded = loaded
        self.target = loaded.target
        self._layer = len(loaded.target.cache_spec.layers) - 1
        self.sleep_part = Dispensable(loaded.weights)
        attending = replace(loaded.target, attention_shapes=(loaded.shape,))
        try:
            self._backend = setup.choose_backend(settings, attending, device.torch_device, wants_graphs=False)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"TorchDraftHead({self._loaded.words}, {self.sleep_part!r})"

    @property
    def words(self) -> str:
        """See `Draft`."""
        if lost := self.sleep_part.lost:
            return f"no drafts, as the head did not come back: {lost}"
        return f"drafts by {self._loaded.words}: torch, attention {self._backend.name}"

    @property
    def weights_bytes(self) -> int:
        """See `Draft`."""
        return sum(slot.num_bytes for slot in self._loaded.weights.layout.slots)

    @property
    def facts(self) -> tuple[object, ...]:
        """See `Draft`. Raises OSError."""
        return self._loaded.config.read_bytes(), sorted(self._loaded.weights.checksums.items())

    def attach(self, runner: ModelRunner, cache: KVCache, host_cache: KVCache) -> None:
        """See `Draft`."""
        del host_cache  # its part moves with the model's
        states = KeptStates(self._loaded.hidden_size, self._loaded.depths)
        passes = TorchPasses(self._loaded.head, cache.part(self._layer), self._backend, states)

        def make_drafter(sequences: InputBatch, answer: Answer) -> HeadDrafter:
            return HeadDrafter(passes, sequences, answer, is_there=lambda: not self.sleep_part.lost)

        runner.read_along(states)
        runner.draft_by(make_drafter)

    def run(self, batches: Sequence[Batch], cache: KVCache, host_cache: KVCache) -> None:
        """See `Draft`: it has read along."""

    def part_of_target(self, cache: KVCache) -> KVCache:
        """See `Draft`: its part is kept with the model's."""
        return cache

    def forget(self, block_ids: Sequence[int]) -> None:
        """See `Draft`: what came has its part."""

    def close(self) -> None:
        """See `Draft`."""
        self._loaded.weights.close()
