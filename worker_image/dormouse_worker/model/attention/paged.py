"""The forward context that answers attention from the paged cache."""

from __future__ import annotations

from collections.abc import Sequence

from dormouse_worker.model.attention.interface import AttentionPlan
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.scratch import Scratch
from dormouse_worker.model.tensors import Tensor


class PagedContext:
    """Answers from the paged cache: the plan of the layer's group stores the pass's keys and values, then attends."""

    def __init__(self, cache: KVCache, plans: Sequence[AttentionPlan], scratch: Scratch | None = None) -> None:
        """`scratch` is what the passes of one runner use again; None = this pass has its own."""
        self.cache = cache
        self.plans = plans  # of the layer groups
        self.scratch = scratch or Scratch()

    def attend(self, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `ForwardContext`."""
        plan, pool = self.plans[self.cache.group_of(call.layer_idx)], self.cache.layer(call.layer_idx)
        plan.write(pool, key, value)
        return plan.attend(call, query, pool)
