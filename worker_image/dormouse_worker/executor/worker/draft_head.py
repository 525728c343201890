"""The EAGLE head of a worker without torch: loaded beside its model, asleep and awake with it, and who drafts by it."""

from __future__ import annotations

from pathlib import Path

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.bare.loader import BareModel
from dormouse_worker.model.bare.runner import BareRunner
from dormouse_worker.model.conclusion import Answer
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.drafting.dispensable import Dispensable
from dormouse_worker.model.drafting.head import NativePasses, beside, join
from dormouse_worker.model.drafting.head_drafter import HeadDrafter
from dormouse_worker.model.drafting.load_head import load_head
from dormouse_worker.model.input_batch import InputBatch
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.native.library import Kernels


class DraftHead:
    """Owns the head's weights; its keys and values lie in the model's cache, behind the model's own."""

    def __init__(self, settings: EngineSettings, device: Device, target: BareModel, kernels: Kernels) -> None:
        """Load it. Raises as `load_head`. `target` is how the model is to be used from now on."""
        self._name, self._directory = settings.speculation_model, Path(settings.speculation_model)
        self._layer = len(target.cache_spec.layers)
        self._loaded = load_head(settings, device, beside(target))
        self.target, self._head = join(target, self._loaded, kernels)
        self.sleep_part = Dispensable(self._loaded.weights)

    def __repr__(self) -> str:
        return f"DraftHead({self._name}, {self.sleep_part!r})"

    @property
    def words(self) -> str:
        """Return who drafts, or why nobody does."""
        if lost := self.sleep_part.lost:
            return f"no drafts, as the head did not come back: {lost}"
        return f"drafts by the head {self._name}"

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of its weights."""
        return self._loaded.weights_bytes

    @property
    def facts(self) -> tuple[object, ...]:
        """Return what its part of a block depends on. Raises OSError."""
        config = (self._directory / "config.json").read_bytes()
        return config, sorted(self._loaded.weights.checksums.items())

    def attach(self, runner: BareRunner, cache: KVCache) -> None:
        """Let a runner over this cache propose what the head says."""
        scratch = self._head.read_scratch()
        passes = NativePasses(self._head, cache.part(self._layer), scratch)

        def make_drafter(sequences: InputBatch, answer: Answer) -> HeadDrafter:
            return HeadDrafter(passes, sequences, answer, is_there=self._is_there)

        runner.draft_by(make_drafter, scratch)

    def _is_there(self) -> bool:
        return not self.sleep_part.lost

    def close(self) -> None:
        """Give the memory back."""
        self._loaded.weights.close()
