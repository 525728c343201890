"""When golden tokens are recorded and when they are verified, and what else is verified with them."""

from __future__ import annotations

from typing import Protocol

from dormouse_worker.common.commands import WEIGHTS
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.sides import Sides
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.golden import Execute, GoldenTokens, compare_golden, facts_of, record_golden, repeat_golden
from dormouse_worker.model.kv_cache import CacheSpec, KVCache, preserved
from dormouse_worker.model.stopwatch import Stopwatch
from dormouse_worker.model.weights.store import WeightStore

VERIFY = "verify"  # the phase of a wake


class CheckedModel(Protocol):
    """What is asked of a loaded model."""

    @property
    def weights(self) -> WeightStore:
        """Return the memory of its tensors."""

    @property
    def cache_spec(self) -> CacheSpec:
        """Return what the cache holds for it."""

    @property
    def layout(self) -> Layout:
        """Return which part of the model it is."""

    @property
    def vocab_size(self) -> int:
        """Return how many tokens there are."""

    @property
    def max_model_len(self) -> int:
        """Return the longest sequence."""

    @property
    def sides(self) -> Sides | None:
        """Return what both sides are where an encoder reads the prompts."""


class GoldenCheck:
    """Owns what a model said at its first start."""

    def __init__(self, model: CheckedModel, device: Device, block_size: int) -> None:
        self._model, self._device, self._block_size = model, device, block_size
        self._golden: GoldenTokens | None = None

    def __repr__(self) -> str:
        return f"GoldenCheck({'recorded' if self._golden else 'nothing recorded'})"

    def check(self, execute: Execute, watch: Stopwatch, live_cache: KVCache | None) -> None:
        """Record the golden tokens the first time, verify them later. Raises Damaged, or why weights do not arrive.

        A live cache is as it was afterwards, whatever is raised: blocks of it may hold known prefixes.
        The pass computes each layer as soon as its weights are there; nothing is judged before all of them are.
        """
        if self._golden is None:
            self._golden = self._record(execute)
            return
        weights = self._model.weights
        with watch.phase(WEIGHTS if weights.is_arriving else VERIFY):
            with preserved(live_cache, self._golden.num_blocks):
                rows = repeat_golden(execute, self._golden)
            weights.arrive()
        with watch.phase(VERIFY):
            if self._device.capability is not None:  # they crossed a bus; compared at the speed of a GPU's memory
                weights.check_integrity()
            compare_golden(self._golden, rows)

    @property
    def facts(self) -> object:
        """Return what the model said at its first start, as `facts_of`."""
        assert self._golden is not None, "initialize_cache records it"
        return facts_of(self._golden)

    def _record(self, execute: Execute) -> GoldenTokens:
        return record_golden(
            execute,
            vocab_size=self._model.vocab_size,
            max_model_len=self._model.max_model_len,
            block_size=self._block_size,
            num_groups=len(self._model.cache_spec.groups),
            generates=self._model.layout.world_size == 1,
            sides=self._model.sides,
        )
