"""A model and a cache of the agreed size, together: what can compute, sleep and wake."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Protocol

from dormouse_worker.common.commands import KV_CACHE
from dormouse_worker.common.memory_settings import MemorySettings
from dormouse_worker.engine.batch import Batch, ModelOutput, SampledToken
from dormouse_worker.model.cache_store import CacheStore
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.kept_images import KeptImages
from dormouse_worker.model.kv_cache import CacheSpec, KVCache
from dormouse_worker.model.sleep import SleepCycle, SleepPart
from dormouse_worker.model.stopwatch import Stopwatch
from dormouse_worker.model.tensors import Tensor


class Runner(Protocol):
    """What computes over a model and its caches."""

    @property
    def image_rows(self) -> dict[bytes, Tensor]:
        """Return the rows of images that it holds, by digest; who wakes it may add some."""

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """See `ModelRunner.submit`."""

    def append_sampled(self, tokens: Sequence[SampledToken]) -> None:
        """See `ModelRunner.append_sampled`."""

    def close(self) -> None:
        """Let go of what it holds; it is not used again."""


class Allocation:
    """Owns the caches and, while nothing sleeps, the runner over them."""

    def __init__(
        self,
        device: Device,
        spec: CacheSpec,
        block_counts: tuple[int, int],
        weights: Sequence[SleepPart],
        make_runner: Callable[[KVCache, KVCache], Runner],
        settings: MemorySettings,
    ) -> None:
        """Allocate the agreed (device, host) blocks. Raises what `CacheStore` and `make_runner` raise; nothing is held.

        The weights, in one or several parts, sleep and wake with the rest, but stay their owner's.
        """
        num_gpu_blocks, num_cpu_blocks = block_counts
        prefaults = settings.prefault_kv_cache
        self._device = device
        self._settings = settings
        self._make_runner = make_runner
        self._kept_images = KeptImages({}, device)  # some only while there is no runner
        self._runner: Runner | None = None
        with ExitStack() as undo:
            self._cache = CacheStore(device, spec, num_gpu_blocks, prefaults=prefaults)
            undo.callback(self._cache.close)
            self._stores = [self._cache]
            self._host_cache = KVCache(spec, 0, None)
            if num_cpu_blocks:
                swap = CacheStore(device, spec, num_cpu_blocks, is_beside=True, prefaults=prefaults)
                undo.callback(swap.close)
                self._stores.append(swap)
                self._host_cache = swap.cache
            self._start_runner()
            undo.pop_all()
        self._has_slept = False  # the cache's memory went, and what a wake brought back is not complete yet
        self._cycle = SleepCycle([*weights, *self._stores], device.memory.promised)

    def __repr__(self) -> str:
        return f"Allocation({self._runner!r}, {self._cycle!r})"

    @property
    def cache(self) -> KVCache:
        """Return the cache on the device; the same over every sleep."""
        return self._cache.cache

    @property
    def live_cache(self) -> KVCache | None:
        """Return the cache if blocks of it may hold what somebody will ask for; None while they are yet to come back.

        A sleep of the weights alone leaves it as it is.
        """
        return None if self._has_slept else self.cache

    def restart(self) -> None:
        """Make the runner anew; only while nothing runs or sleeps."""
        self._start_runner()

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """Return what sleeps."""
        return self._cycle.sleeping_tags

    @property
    def host_copy_bytes(self) -> int:
        """Return the host memory that kept blocks and images take."""
        return self._cache.host_copy_bytes + self._kept_images.num_bytes

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """See `Runner.submit`; only while nothing sleeps."""
        return self._awake().submit(batch)

    def append_sampled(self, tokens: Sequence[SampledToken]) -> None:
        """See `Runner.append_sampled`; after a sleep began there is nobody to know them."""
        if self._runner is not None:
            self._runner.append_sampled(tokens)

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int], watch: Stopwatch) -> None:
        """See `SleepCycle.sleep`. The device has finished with everything. Raises InvalidArgument on a wrong block."""
        if KV_CACHE in tags:
            self._cache.keep(kept_blocks)
        with watch.phase("save"):
            images = self._images_to_keep(level)
        try:
            self._cycle.sleep(level, tags, watch)
        except BaseException:
            if images is not self._kept_images:
                images.close()
            raise
        self._has_slept = self._has_slept or KV_CACHE in tags
        self._drop_runner()
        self._keep_images(images)

    def prepare(self, tags: Collection[str]) -> int:
        """See `SleepCycle.prepare`."""
        return self._cycle.prepare(tags)

    def wake(
        self, tags: Collection[str], agree: Callable[[], None], verify: Callable[[], None], watch: Stopwatch
    ) -> None:
        """See `SleepCycle.wake`. Once nothing sleeps any more, `verify` may compute.

        It may write to any block, but must leave a `live_cache` as it is, also where it raises. Before that `agree`
        returns if the wake shall go on; what it raises takes the wake back.

        Weights may still be arriving then; `verify` counts its time itself.
        """

        def finish() -> None:
            agree()
            if self.sleeping_tags:
                return
            with watch.phase("verify"):
                self._start_runner()
            verify()
            with watch.phase(KV_CACHE):
                self._cache.put_back()
                self._awake().image_rows.update(self._kept_images.back())

        try:
            self._cycle.wake(tags, finish, watch)
        except BaseException:
            self._drop_runner()
            raise
        if not self.sleeping_tags:
            self._has_slept = False
            self._keep_images(KeptImages({}, self._device))

    def forget_images(self) -> None:
        """Drop rows of images, and what is kept of them."""
        self._kept_images.close()
        if self._runner is not None:
            self._runner.image_rows.clear()

    def close(self) -> None:
        """Give everything back that is not the weights', reservations too."""
        self._drop_runner()
        self._kept_images.close()
        self._cycle.cancel()
        for store in self._stores:
            store.close()

    def _images_to_keep(self, level: int) -> KeptImages:
        """Return what a sleep at this level keeps of images: copies, or what an earlier one has kept."""
        if not self._settings.keeps_images(level):
            return KeptImages({}, self._device)
        return self._kept_images if self._runner is None else KeptImages(self._runner.image_rows, self._device)

    def _keep_images(self, images: KeptImages) -> None:
        if images is not self._kept_images:
            self._kept_images.close()
        self._kept_images = images

    def _awake(self) -> Runner:
        assert self._runner is not None, f"{self.sleeping_tags} sleep"
        return self._runner

    def _start_runner(self) -> None:
        self._drop_runner()
        self._runner = self._make_runner(self._cache.cache, self._host_cache)

    def _drop_runner(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None
