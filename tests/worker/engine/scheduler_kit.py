"""Builders of the scheduler's tests: a small one, requests for it, one pass of it."""

from dormouse_worker.engine.batch import SampledToken
from dormouse_worker.engine.block_pool import BlockPool
from dormouse_worker.engine.block_tables import BlockTables, CacheLayout
from dormouse_worker.engine.forward_pass import Limits
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.scheduler import Scheduler
from dormouse_worker.engine.swap import SwapSpace
from dormouse_worker.engine.testing import ManualClock, make_sampling


def make_scheduler(
    num_blocks=10,
    block_size=4,
    *,
    seqs=4,
    tokens=8,
    max_model_len=16,
    host_blocks=0,
    windows=(None,),
    caches=False,
    pool=None,
):
    tables = BlockTables(pool or BlockPool(num_blocks), CacheLayout(block_size, windows))
    limits = Limits(seqs, tokens, max_model_len, caches_prefixes=caches)
    return Scheduler(tables, SwapSpace(host_blocks), limits, ManualClock())


def add(scheduler, request_id, num_tokens=3, *, priority=0, salt="", **sampling):
    request = Request(
        request_id,
        list(range(num_tokens)),
        make_sampling(**sampling),
        arrival_s=0.0,
        priority=priority,
        cache_salt=salt,
    )
    scheduler.add(request)
    return request


def commit(scheduler, batch, token=5):
    return scheduler.commit(batch, [SampledToken(s.request_id, token) for s in batch.sequences if s.samples])


def step(scheduler):
    """Run one pass; return its spans as {id: (start, end, samples)}."""
    batch = scheduler.schedule()
    commit(scheduler, batch)
    return {s.request_id: (s.start, s.end, s.samples) for s in batch.sequences}
